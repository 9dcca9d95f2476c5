"""``make faults``: what a store can be made to suffer. ``python -m tests.faults --count 10000 --only kills``."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.campaign import ROUNDS, Case, Verdicts, calls_of, preload, run_cases, run_round
from tests.faults.isolated import kill_isolated
from tests.faults.operations import OPERATIONS, WARM, prepare
from tests.faults.served import served
from tests.faults.system import unavailable
from tests.faults.tampering import tamper_cases
from tests.faults.together import together

#: Cases that a process runs, one after the other.
_BATCH = 250
PARTS = ("calls", "kills", "together", "served", "tampering", "readers", "isolated")


def calls(
    prepared: Path, folder: Path, rounds: range, share: float, only: str, tell: Callable[[Verdicts], None]
) -> Verdicts:
    """Each system call of each operation failed with each error, or some rounds of that. only: a part of a name."""
    verdicts = Verdicts()
    for number in rounds:
        for operation in [each for each in OPERATIONS if only in each.name]:
            verdicts.add_all(run_round(operation, number, prepared, folder / "run", share))
            tell(verdicts)
    return verdicts


def kills(prepared: Path, folder: Path, seed: int, count: int, tell: Callable[[Verdicts], None]) -> Verdicts:
    """Processes killed, by half right before one of their calls and by half at a random time."""
    verdicts = Verdicts()
    changing = [operation for operation in OPERATIONS if not operation.hits]
    shares = {operation: -(-count // len(changing)) for operation in changing} | {WARM: -(-count // 50)}
    for operation, share in shares.items():
        calls = range(1, 1 + len(calls_of(operation, prepared, folder / "count")))
        chosen = itertools.islice(
            itertools.cycle(random.Random(f"{seed}{operation.name}").sample(calls, len(calls))), share // 2
        )
        times = range(seed * count, seed * count + share - share // 2)
        cases = [Case(operation, "killed", number) for number in chosen] if not unavailable() else []
        _run(cases + [Case(operation, "random", number) for number in times], prepared, folder, verdicts)
        tell(verdicts)
    return verdicts


def tampering(prepared: Path, folder: Path, seed: int, count: int, tell: Callable[[Verdicts], None]) -> Verdicts:
    """Every place of a store, damaged in every way."""
    return tamper_cases(prepared, folder / "tampered", seed, count, tell)


def _run(cases: list[Case], prepared: Path, folder: Path, verdicts: Verdicts) -> None:
    for first in range(0, len(cases), _BATCH):
        found = run_cases(cases[first : first + _BATCH], prepared, folder / "run")
        verdicts.add_all(found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument(
        "--count", type=int, default=1000, help="kills, and damaged files; 20 times as many inputs a reader"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="5: of each site the first call, with each error")
    parser.add_argument("--first", type=int, default=0, help="the round that is begun with")
    parser.add_argument("--minutes", type=float, default=0, help="of eight processes, in place of the count")
    parser.add_argument("--operation", default="", help="those alone whose name has it, of calls")
    parser.add_argument("--share", type=float, default=1.0, help="of a round")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--progress", type=Path, help="a file that says what was found so far")
    given = parser.parse_args()
    started, only = time.monotonic(), given.only or [*PARTS]
    bad: list[str] = []
    why_not = unavailable()
    if why_not and "calls" in only:
        print(f"no call is failed: {why_not}")
        only.remove("calls")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="faults-", dir=memory) as temporary:
        folder = Path(temporary)
        if set(only) - {"served", "readers", "isolated"}:
            prepared = prepare(folder / "prepared")
            preload(prepared, folder / "preloaded")

        def tell(so_far: Verdicts) -> None:
            if given.progress is not None:
                given.progress.write_text("\n\n".join((so_far.table(), *so_far.bad)))

        for name in only:
            if name == "readers":
                continue
            if name == "calls":
                found = calls(prepared, folder, range(given.first, given.rounds), given.share, given.operation, tell)
            elif name == "kills":
                found = kills(prepared, folder, given.seed, given.count, tell)
            elif name == "together":
                found = together(prepared, folder / "together", given.seed, given.count, given.minutes)
            elif name == "isolated":
                found = kill_isolated(folder / "isolated", given.seed, given.count)
            elif name == "served":
                found = served(folder / "served", given.seed, given.count)
            else:
                found = tampering(prepared, folder, given.seed, given.count, tell)
            print(f"\n{name}: slowest {found.slowest:.1f} s\n{found.table()}", flush=True)
            bad += found.bad
        if "readers" in only:
            from tests.faults.fuzzing import fuzz
            from tests.faults.readers import FAMILIES

            print("\nreaders")
            for number, family in enumerate(FAMILIES):
                fuzzed = fuzz(family, 20 * given.count, given.seed, folder / f"reader{number}")
                print(f"{family.name:34} {fuzzed.inputs:10}  {dict(fuzzed.outcomes)}", flush=True)
                bad += [f"{family.name}: {where}\n{said}" for where, said in fuzzed.broken.items()]
    for each in bad[:200]:
        print(f"\n{each}")
    print(f"\n{len(bad)} wrong, seed {given.seed}, {time.monotonic() - started:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
