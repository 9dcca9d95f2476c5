"""Runs a reader on mutated files, in processes of its own that have little memory and little time."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.faults.mutations import Mutator
from tests.faults.readers import Family
from tests.faults.scene import remove

#: Inputs a process.
CHUNK = 20_000
#: Seconds of CPU for one input, and bytes of memory for all of a chunk beyond what was there.
_SECONDS = 10.0
_MEMORY = 3 << 30


class _Stuck(BaseException):
    """One input took too long."""


class Fuzzed(NamedTuple):
    """outcomes: how often an input was read, and how often refused. broken: what else was raised, each place once."""

    inputs: int
    outcomes: Counter[str]
    broken: dict[str, str]


def fuzz(family: Family, count: int, seed: int, folder: Path) -> Fuzzed:
    """Read ``count`` mutated files. The same seed gives the same files."""
    outcomes: Counter[str] = Counter()
    broken: dict[str, str] = {}
    folder.mkdir(exist_ok=True)
    for first in range(0, count, CHUNK):
        place = folder / str(first)
        found, said = _in_child(family, min(CHUNK, count - first), f"{seed}:{family.name}:{first}", place)
        outcomes.update(found)
        broken = {**said, **broken}
        remove(place)
    return Fuzzed(outcomes.total(), outcomes, broken)


def _in_child(family: Family, count: int, seed: str, place: Path) -> tuple[dict[str, int], dict[str, str]]:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(read)
            place.mkdir()
            answer = json.dumps(_chunk(family, count, seed, place))
        except BaseException:
            answer = json.dumps([{}, {"preparing": traceback.format_exc()}])
        try:
            with os.fdopen(write, "w") as pipe:
                pipe.write(answer)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not answer:
        return {"crashed": 1}, {"crash": f"chunk {seed}: its process ended with {status}"}
    found, said = json.loads(answer)
    return found, said


def _chunk(family: Family, count: int, seed: str, place: Path) -> tuple[dict[str, int], dict[str, str]]:
    seeds, read = family.make(place)
    read(seeds[0].data)  # what was not touched is read
    mutator = Mutator(seeds, random.Random(seed))
    outcomes: Counter[str] = Counter()
    broken: dict[str, str] = {}
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGVTALRM, _raise_stuck)
    for _ in range(count):
        data = mutator.next()
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
            try:
                read(data)
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except family.refusals:
            outcomes["refused"] += 1
        except BaseException as error:
            outcomes["broken"] += 1
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if "/tests/" not in frame.filename] or frames
            where = f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].lineno}"
            broken.setdefault(where, f"{traceback.format_exc(limit=-12)}\ninput: {data[:2000]!r}")
        else:
            outcomes["read"] += 1
    return outcomes, broken


def _raise_stuck(_number: int, _frame: object) -> None:
    raise _Stuck


def main() -> int:
    """``python -m tests.faults.fuzzing COUNT SEED [FAMILY...]``."""
    import tempfile

    from tests.faults.readers import FAMILIES

    count, seed, *names = sys.argv[1:]
    failed = 0
    for family in FAMILIES:
        if names and family.name not in names:
            continue
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            found = fuzz(family, int(count), int(seed), Path(folder))
        print(f"{family.name:24} {found.inputs:8} {dict(found.outcomes)}", flush=True)
        for where, said in found.broken.items():
            failed += 1
            print(f"  {where}\n{said}\n", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
