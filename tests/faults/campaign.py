"""Operations under faults: each system call failed or killed, and kills at random times, each judged afterwards."""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.faults.operations import OPERATIONS, REFUSED, RIGHT, WARM, Bench, Judge, Operation, destroy, use
from tests.faults.scene import remove
from tests.faults.system import STARTS, At, Sites, Watched, watched

#: What each call fails with once.
ERRORS = {name: getattr(errno, name) for name in ("EIO", "ENOSPC", "EACCES", "EMFILE", "EINTR")}
#: Seconds after which an operation counts as stuck: longer than it may wait for what another process holds.
BOUND = 20.0


class Case(NamedTuple):
    """fault: of ``ERRORS``, ``killed`` right before a call, or ``random``: killed at any time. number: of the call, of
    all or of those of a name, or the seed of the time."""

    operation: Operation
    fault: str
    number: int
    name: str = ""

    def __str__(self) -> str:
        return f"{self.operation.name}: {self.fault} at {self.name}{' ' if self.name else ''}{self.number}"


class Verdicts:
    """Counts by operation and fault, and what was wrong."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.bad: list[str] = []
        self.slowest = 0.0

    def add(self, name: str, fault: str, verdict: str, words: str = "") -> None:
        """Count a case. verdict: ``right``, ``refused``, or what is wrong."""
        self.counts[name, fault, verdict] += 1
        if verdict not in {"right", "refused", "killed", "ended before"}:
            self.bad.append(words)

    def take(self, other: dict[str, int], bad: Iterable[str], slowest: float) -> None:
        """Add those of another process."""
        for key, count in other.items():
            name, fault, verdict = key.split("|")
            self.counts[name, fault, verdict] += count
        self.bad += bad
        self.slowest = max(self.slowest, slowest)

    def given(self) -> tuple[dict[str, int], list[str], float]:
        """For ``take``, as JSON carries it."""
        return {"|".join(key): count for key, count in self.counts.items()}, self.bad, self.slowest

    def add_all(self, other: Verdicts) -> None:
        """Add those of others."""
        self.counts += other.counts
        self.bad += other.bad
        self.slowest = max(self.slowest, other.slowest)

    def table(self) -> str:
        """A line an operation and fault: cases, and how they ended."""
        rows: dict[tuple[str, str], Counter[str]] = {}
        for (name, fault, verdict), count in sorted(self.counts.items()):
            rows.setdefault((name, fault), Counter())[verdict] += count
        lines = [f"{'operation':34} {'fault':10} {'cases':>7}  ended"]
        for (name, fault), found in rows.items():
            ended = ", ".join(f"{count} {verdict}" for verdict, count in found.most_common())
            lines.append(f"{name:34} {fault:10} {found.total():7}  {ended}")
        return "\n".join(lines)


def preload(prepared: Path, folder: Path) -> None:
    """Import what any operation imports, and do nothing else: its own calls are then all that is seen."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            for number, operation in enumerate((*OPERATIONS, WARM)):
                bench = Bench(operation, prepared, folder / str(number))
                bench.enter()
                bench.judge(claimed=False)
            use(bench.scene)
            destroy(bench.scene)
            os.write(write, json.dumps(list(sys.modules)).encode())
        except BaseException:
            os.write(write, json.dumps(traceback.format_exc()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = json.load(pipe)
    os.waitpid(child, 0)
    remove(folder)
    if isinstance(found, str):
        raise RuntimeError(found)  # noqa: TRY004 - it is the words of what was raised there
    for name in (*found, "rich.cells"):  # which only a cell imports that is not of Latin letters
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # of a package that looks for what is not installed


@contextmanager
def _bench(operation: Operation, prepared: Path, folder: Path) -> Iterator[tuple[Bench, Judge]]:
    folder.mkdir(parents=True)
    install_little(folder / "site")
    bench = Bench(operation, prepared, folder / "scene")
    judge = Judge(bench)
    try:
        bench.enter()  # what a process learns once, it has learned
        bench.judge(claimed=False)
        bench.restore()
        if operation.hits:
            judge.ask(claimed=False)
        gc.freeze()  # or a collection in each child copies the whole heap
        yield bench, judge
    finally:
        judge.close()
        remove(folder)


def install_little(site: Path) -> None:
    """Of the installed packages leave two to be found: each of a hundred more would be the same few calls again."""
    for name in ("one", "two"):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"{name}.py,,\n")
        (info / "entry_points.txt").write_text(f"[console_scripts]\n{name} = {name}:main\n")
    sys.path[:] = [str(site), *(each for each in sys.path if "site-packages" not in each)]


def calls_of(operation: Operation, prepared: Path, folder: Path) -> list[str]:
    """The calls that an operation makes, undisturbed."""

    def calls() -> object:
        with _bench(operation, prepared, folder) as (bench, _):
            return watched(bench.run, None, before=bench.begin).calls

    found = in_process(calls)
    assert isinstance(found, list)
    return found


def run_cases(cases: list[Case], prepared: Path, folder: Path) -> Verdicts:
    """Run cases of one operation, in a process of its own."""

    def run() -> object:
        verdicts = Verdicts()
        with _bench(cases[0].operation, prepared, folder) as (bench, judge):
            is_timed = any(case.fault == "random" for case in cases)
            lasted = _lasts(bench) if is_timed else 0.0
            if is_timed:
                bench.restore()
            for case in cases:
                _run_case(case, bench, judge, verdicts, lasted)
        return verdicts.given()

    verdicts = Verdicts()
    verdicts.take(*in_process(run))
    return verdicts


def run_round(operation: Operation, number: int, prepared: Path, folder: Path, share: float = 1) -> Verdicts:
    """One round of an operation, or a share of it. In the first five rounds each site fails at its first call, with
    another error in each; in the next five at its last call, then at a middle one, then at all others."""

    def run() -> object:
        verdicts = Verdicts()
        with _bench(operation, prepared, folder) as (bench, judge):
            if not operation.hits:  # the second time, as all cases: the first scene was made in another way
                watched(bench.run, None, before=bench.begin)
                bench.restore()
            found = watched(bench.run, None, before=bench.begin, sites=Sites())
            assert found.status == RIGHT, bench.said()
            if operation.hits:
                judge.ask(claimed=True)
            cases = list(round_of(operation, number, found))
            for case in random.Random(f"{operation.name}{number}").sample(cases, round(len(cases) * share)):
                _run_case(case, bench, judge, verdicts, 0.0)
        return verdicts.given()

    verdicts = Verdicts()
    verdicts.take(*in_process(run))
    return verdicts


#: Rounds after which each call has failed with each error.
ROUNDS = 20


def round_of(operation: Operation, number: int, found: Watched) -> Iterator[Case]:
    """The cases of a round of ``run_round``, of a run whose sites were noted."""
    sites: dict[str, list[int]] = {}
    named: Counter[str] = Counter()
    for name, site in zip(found.calls, found.sites, strict=True):
        named[name] += 1
        sites.setdefault(site, []).append(named[name])
    errors = sorted(ERRORS)
    for site, each in sites.items():
        middle = len(each) // 2
        chosen = (each[:1], each[1:][-1:], each[1:-1][middle - 1 :][:1], each[1:middle] + each[middle + 1 : -1])
        fault = errors[(sum(site.encode()) + number) % len(errors)]
        for call in chosen[number // len(errors)]:
            yield Case(operation, fault, call, site.partition(" ")[0])


def _run_case(case: Case, bench: Bench, judge: Judge, verdicts: Verdicts, lasted: float) -> None:
    operation = case.operation
    if not operation.hits:
        bench.restore()
    if case.fault == "random":
        verdict, status = _killed_at(bench, random.Random(case.number).uniform(0, lasted)), None
    else:
        found = watched(bench.run, At(case.number, ERRORS.get(case.fault, 0), case.name), BOUND, before=bench.begin)
        status = found.status
        verdicts.slowest = max(verdicts.slowest, found.seconds)
        verdict = _verdict(case, status, bench.said(), found.struck)
    said = bench.said()
    wrong = judge.ask(claimed=status == RIGHT)
    if wrong:
        verdict = "lost" if "lost:" in wrong else "stuck" if "ended by" in wrong else "wrong afterwards"
    verdicts.add(operation.name, case.fault, verdict, f"{case}: {verdict}\n{said[-3000:]}\n{wrong}")
    if wrong:
        bench.restore()
        if operation.hits:
            judge.ask(claimed=False)


def _verdict(case: Case, status: int | None, said: str, struck: str | None) -> str:
    if status is None:
        return "stuck"
    if status == -signal.SIGKILL and case.fault == "killed":
        return "killed"
    if struck is None:
        return "ended before"
    if status == 1 or "Traceback" in said or "Exception ignored" in said:
        return "exception"
    if status in {RIGHT, REFUSED}:
        return "right" if status == RIGHT else "refused"
    return "refused" if struck in STARTS and status >= 0 else f"wrong ({status})"


def _lasts(bench: Bench) -> float:
    """Seconds that the operation takes, for most of the time."""
    times = []
    for _ in range(5):
        if not bench.operation.hits:
            bench.restore()
        started = time.monotonic()
        _wait(_start(bench), None)
        times.append(time.monotonic() - started)
    return sorted(times)[3]


def _start(bench: Bench) -> int:
    child = os.fork()
    if not child:
        try:
            bench.begin()
            os._exit(bench.run())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def _wait(child: int, seconds: float | None) -> int:
    """Wait for the end of a process, or kill it after so long."""
    if seconds is not None:
        fd = os.pidfd_open(child)
        try:
            if not select.select([fd], [], [], seconds)[0]:
                os.kill(child, signal.SIGKILL)
        finally:
            os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _killed_at(bench: Bench, seconds: float) -> str:
    status = _wait(_start(bench), seconds)
    if status == -signal.SIGKILL:
        return "killed"
    return "ended before" if status in {RIGHT, REFUSED} else "exception"


def in_process(body: object) -> object:
    """What a function gives, called in a forked process: it may chdir and learn what it likes."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        try:
            answer = json.dumps(body())  # type: ignore[operator]
        except BaseException:
            answer = json.dumps({"failed": traceback.format_exc()})
        try:
            with os.fdopen(write, "w") as pipe:
                pipe.write(answer)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found = json.loads(text)
    if isinstance(found, dict) and "failed" in found:
        raise RuntimeError(found["failed"])
    return found
