"""Runs projects and holds each answer of the cache against the stage itself.

A case is a project, an edit (or the way back from it) and a way in which a process comes to it: a new process, the same
process with what it has, after a reload, or after a value was set, a kernel that runs its cells again. In each of them
the cache is asked, and held against what the stage itself gives there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

from tests.soundness.cases import Project

ROOT = Path(__file__).parents[2]

#: Projects that share their processes.
BATCH = 16

Step = tuple[Any, ...]


@dataclass
class Report:
    """What came of many cases. wrong: hits with another result than the stage's own. failed: other answers that are not
    the stage's own. Neither should ever be. needless: misses after an edit that changes nothing; coarse: after one of
    what nothing uses; apart: in another checkout of the same. refused: calls that can't be keyed, or whose first result
    was kept out. hits: answers that came from the cache."""

    projects: int = 0
    cases: int = 0
    looks: int = 0
    hits: int = 0
    neutral: int = 0
    unused: int = 0
    moved: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    needless: list[str] = field(default_factory=list)
    coarse: list[str] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    #: Of toys: for each way to read or write, how many of its cases there are, and how many were wrong and so on;
    #: "never stored" counts toys.
    ways: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: Report) -> None:
        """Count what came of more cases."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def text(self) -> str:
        """In words, the rates and each wrong hit."""
        lines = [
            f"{self.cases} cases of {self.projects} projects, {self.looks} looks, {self.hits} hits: "
            f"{len(self.wrong)} wrong hits, {len(self.failed)} failures",
            f"{len(self.needless)} needless misses after {self.neutral} edits that change nothing, "
            f"{len(self.coarse)} after {self.unused} that add to what nothing uses, "
            f"{len(self.apart)} in {self.moved} other checkouts, {len(self.refused)} refusals",
        ]
        for title, names in (("wrong", self.wrong), ("failed", self.failed), ("needless", self.needless)):
            lines += [f"  {title}: {name}" for name in names[:40]]
        lines += [f"  apart: {name}" for name in self.apart[:10]]
        lines += [f"  refused: {name}" for name in self.refused[:20]]
        found = sorted({way for way, kind in self.ways if kind != "cases"})
        kinds = ("cases", "wrong", "needless", "refused", "never stored")
        lines += [f"  way: {way}: " + ", ".join(f"{self.ways[way, kind]} {kind}" for kind in kinds) for way in found]
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

    def __call__(self, store: Path, projects: Sequence[tuple[Path, Sequence[Step]]]) -> list[Any]:
        """The answers of each project's looks, from one new process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {"store": str(store), "projects": [(str(folder), steps) for folder, steps in projects]}
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
    report.hits += answer["reason"] == "hit"
    if answer["reason"] == "refused":
        report.refused.append(f"{name}: {answer['detail']}")
    elif answer["reason"] != "miss" and answer["value"] != answer["truth"]:
        found = report.wrong if answer["reason"] == "hit" else report.failed
        found.append(
            f"{name}: {answer['reason']} gives {answer['value']}, the stage {answer['truth']} {answer['detail']}"
        )


class _Process:
    """What one new process does with each project: steps, and what each look of them is for."""

    def __init__(self, store: str, folder: str = "p") -> None:
        self.store, self.folder = store, folder
        self.steps: dict[int, list[Step]] = {}
        self.looks: dict[int, list[tuple[str, str]]] = {}

    def add(self, number: int, *steps: Step) -> None:
        """steps: as the server takes them; ``("call", what, why)`` and ``("look", what, why)`` with what they are for:
        an edit's kind, or empty where it is the beginning of a case and no case."""
        taken, looks = self.steps.setdefault(number, []), self.looks.setdefault(number, [])
        for step in steps:
            if step[0] in {"call", "look"}:
                looks.append(step[1:])
                step = step[:1]
            taken.append(step)


def _processes(projects: Sequence[Project]) -> list[_Process]:
    """The processes in which projects are looked at, in their order."""
    first, edited, live, after, kept, later = (
        _Process(store) for store in ("store", "store", "live", "live", "set", "set")
    )
    moved = _Process("store", "elsewhere/q")
    for number, project in enumerate(projects):
        change = project.edits[0].files

        def there(files: dict[str, str | None], project: Project = project) -> list[Step]:
            """A project as it is after an edit."""
            if not project.cells:
                return [("write", files)]
            beside = {name: text for name, text in files.items() if name not in project.cells}
            return [("write", beside), ("cells", project.kernel, [files[name] for name in project.cells])]

        first.add(number, *there(project.files), ("call", "", "first"))
        for place, edit in enumerate(project.edits):
            edited.add(number, ("anew",), *there(edit.files), ("look", edit.kind, f"edit {place} in a new process"))
        edited.add(number, ("anew",), *there(project.files), ("look", "neutral", "edited back in a new process"))
        moved.add(number, *there(change), ("look", "decides", "another checkout, edited"), ("anew",))
        moved.add(number, *there(project.files), ("look", "elsewhere", "another checkout"))
        begun = [*there(project.files), ("call", "", "first")]
        if project.cells:
            again = [*there(change), ("call", "decides", "cells run again")]
            live.add(number, *begun, *again, *there(project.files), ("call", "back", "cells run as they were"))
            after.add(number, *there(change), ("look", "decides", "a new kernel after it"))
        elif project.edits_while_running:
            stale = [("write", change), ("call", "decides", "the same process")]
            live.add(number, *begun, *stale, ("reload", "helper"), ("call", "decides", "after a reload"))
            third = [("write", project.edits[1].files), ("autoreload", "helper")]
            live.add(number, *third, ("call", "decides", "after an automatic reload"))
            after.add(number, ("look", "decides", "a new process after it"))
            after.add(number, ("anew",), *there(project.files), ("look", "back", "edited back after it"))
        if project.live:
            kept.add(number, *begun, ("exec", *project.live), ("call", "decides", "a value set in the process"))
            later.add(number, *there(change), ("look", "decides", "edited to what was set in the process"))
    return [first, edited, moved, live, after, kept, later]


def run_batch(ask: Server, report: Report, projects: Sequence[Project], folder: Path) -> None:
    """All the ways in which some projects are looked at, by processes that they share."""
    firsts: dict[int, Any] = {}
    report.projects += len(projects)
    for process in _processes(projects):
        numbers = sorted(process.steps)
        answers = ask(
            folder / process.store,
            [(folder / f"{process.folder}{number}", process.steps[number]) for number in numbers],
        )
        for number, answered in zip(numbers, answers, strict=True):
            name = projects[number].name
            if "failed" in answered:
                report.failed.append(f"{name}: {answered['failed']}")
                continue
            for answer, (kind, what) in zip(answered, process.looks[number], strict=True):
                _count(report, f"{name}, {what}", kind, answer, firsts.setdefault(number, answer))
    shutil.rmtree(folder, ignore_errors=True)


def _count(report: Report, name: str, kind: str, answer: dict[str, Any], first: dict[str, Any]) -> None:
    judge(report, name, answer)
    report.cases += kind != ""
    report.neutral += kind == "neutral"
    report.unused += kind == "unused"
    report.moved += kind == "elsewhere"
    if kind in {"neutral", "unused", "elsewhere"} and answer["reason"] not in {"hit", "refused"}:
        if first["reason"] != "hit" and not first.get("stored"):
            report.refused.append(f"{name}: the first call was not stored, {first['reason']} {first['detail']}")
            return
        missed = {"neutral": report.needless, "unused": report.coarse, "elsewhere": report.apart}[kind]
        missed.append(f"{name}: {answer['reason']} {answer['detail']}; first {first['reason']} {first['detail']}")


def run(projects: Iterator[Project], count: int, folders: Sequence[Path], *, servers: int = 2) -> Report:
    """Run as many projects as it takes for ``count`` cases, by as many processes at a time as there are servers.

    folders: where projects are put, in turn.
    """
    report, lock, numbers = Report(), threading.Lock(), iter(range(sys.maxsize))

    def drain() -> None:
        ask = Server()
        while True:
            with lock:
                number = next(numbers)
                batch = list(islice(projects, BATCH)) if report.cases < count else []
            if not batch:
                break
            own = Report()
            try:
                run_batch(ask, own, batch, folders[number % len(folders)] / str(number))
            except (RuntimeError, ValueError) as error:
                own.failed.append(f"{[project.name for project in batch]}: {error}")
            with lock:
                report.add(own)
        ask.close()

    threads = [threading.Thread(target=drain) for _ in range(servers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return report
