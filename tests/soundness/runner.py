"""Runs cases and holds each answer of the cache against the stage itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soundness.cases import Case

ROOT = Path(__file__).parents[2]


@dataclass
class Report:
    """What came of many cases. wrong: hits with another result than the stage's own; what should never be."""

    looks: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    needless: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    coarse: list[str] = field(default_factory=list)
    neutral: int = 0

    def text(self) -> str:
        """In words, the rates and each wrong hit."""
        lines = [
            f"{self.looks} looks: {len(self.wrong)} wrong hits, {len(self.failed)} failures",
            f"{len(self.needless)} needless misses of {self.neutral} edits that change nothing, "
            f"{len(self.coarse)} of as many that add to what nothing uses, {len(self.refused)} refusals",
        ]
        for title, names in (("wrong", self.wrong), ("failed", self.failed), ("needless", self.needless)):
            lines += [f"  {title}: {name}" for name in names[:40]]
        lines += [f"  refused: {name}" for name in self.refused[:20]]
        return "\n".join(lines)


class Server:
    """One forking server, asked by one thread."""

    def __init__(self, python: str = sys.executable) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "tests.soundness.server"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, folder: Path, *steps: tuple[Any, ...]) -> list[dict[str, Any]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {"folder": str(folder), "store": str(folder.with_name(folder.name + "-store")), "steps": steps}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer  # type: ignore[no-any-return]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def judge(report: Report, name: str, answer: dict[str, Any]) -> None:
    """One answer of the cache: a hit is what the stage itself gives, or it is wrong."""
    report.looks += 1
    if answer["reason"] == "refused":
        report.refused.append(f"{name}: {answer['detail']}")
    elif answer["value"] != answer["truth"]:
        found = report.wrong if answer["reason"] == "hit" else report.failed
        found.append(
            f"{name}: {answer['reason']} gives {answer['value']}, the stage {answer['truth']} {answer['detail']}"
        )


def run_case(ask: Server, report: Report, case: Case, folder: Path) -> None:
    """All the ways in which one case is looked at."""
    folder.mkdir(parents=True)
    # Each in a new process: a first run, an edit that decides nothing, one that does.
    (first,) = ask(folder, ("write", case.files), ("call",))
    judge(report, f"{case.name}, first", first)
    report.neutral += 1
    for files, missed in ((case.neutral, report.needless), (case.unused, report.coarse)):
        (answer,) = ask(folder, ("write", files), ("call",))
        judge(report, f"{case.name}, neutral edit", answer)
        if answer["reason"] not in ("hit", "refused") and answer["truth"] == first["truth"]:
            why = f"{answer['reason']} {answer['detail']}; first {first['reason']} {first['detail']}"
            missed.append(f"{case.name}: {why}")
    (changed,) = ask(folder, ("write", case.changed), ("call",))
    judge(report, f"{case.name}, edit", changed)
    shutil.rmtree(folder.with_name(folder.name + "-store"), ignore_errors=True)
    if case.edits_while_running:
        # One process: its files are edited, then read again; and what new processes make of what it stored.
        steps = [("write", case.files), ("call",), ("write", case.changed), ("call",), ("reload", "helper"), ("call",)]
        for number, answer in enumerate(ask(folder, *steps)):
            judge(report, f"{case.name}, one process, call {number}", answer)
        (after,) = ask(folder, ("call",))
        judge(report, f"{case.name}, a new process after it", after)
        (back,) = ask(folder, ("write", case.files), ("call",))
        judge(report, f"{case.name}, edited back", back)
    if case.live:
        shutil.rmtree(folder.with_name(folder.name + "-store"), ignore_errors=True)
        steps = [("write", case.files), ("call",), ("exec", *case.live), ("call",)]
        for number, answer in enumerate(ask(folder, *steps)):
            judge(report, f"{case.name}, changed in the process, call {number}", answer)
        (after,) = ask(folder, ("write", case.changed), ("call",))
        judge(report, f"{case.name}, edited to what was changed in the process", after)
    for each in (folder, folder.with_name(folder.name + "-store")):
        shutil.rmtree(each, ignore_errors=True)


def run(cases: Iterable[Case], folder: Path, *, servers: int = 2, python: str = sys.executable) -> Report:
    """Run cases, by as many processes at a time as there are servers."""
    report, pending, lock = Report(), list(enumerate(cases)), threading.Lock()

    def drain() -> None:
        ask = Server(python)
        while True:
            with lock:
                if not pending:
                    break
                number, case = pending.pop(0)
            try:
                run_case(ask, report, case, folder / str(number))
            except RuntimeError as error:
                report.failed.append(f"{case.name}: {error}")
        ask.close()

    threads = [threading.Thread(target=drain) for _ in range(servers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return report
