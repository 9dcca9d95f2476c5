"""Run a program of the corpus plainly and with a cache, after edits and in another checkout, and compare."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.corpus.program import Edit, InvalidProgram, Program

Kind = Literal["first", "again", "neutral", "semantic", "moved"]

_NOTEBOOK = str(Path(__file__).with_name("notebook.py"))
_WANTED = re.compile(r"^RESULT .*$", re.MULTILINE)
#: Seconds until a run counts as hung.
_LIMIT = 300
#: Variables of the caller that a run gets; all others would make results depend on who runs the harness.
_PASSED = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Call:
    """One call of a stage, as the cache recorded it."""

    stage: str
    reason: str
    stored: bool
    detail: str

    @property
    def is_hit(self) -> bool:
        return self.reason == "hit"

    @property
    def raised(self) -> bool:
        """Whether the stage itself raised: what it raises is not stored."""
        return self.reason == "error:stage-raised"


@dataclass(frozen=True)
class Run:
    """What one process printed and returned."""

    status: int
    results: list[str]
    seconds: float
    errors: str
    calls: list[Call] = field(default_factory=list)

    @property
    def last_error(self) -> str:
        """The last line of the standard error: what was raised."""
        return self.errors.strip().rpartition("\n")[2][:300]

    def equals(self, other: Run) -> bool:
        return self.status == other.status and self.results == other.results


@dataclass(frozen=True)
class Step:
    """A run with the cache beside a plain run of the same files."""

    kind: Kind
    about: str
    plain: Run
    cached: Run

    @property
    def is_wrong(self) -> bool:
        return not self.plain.equals(self.cached)

    @property
    def is_other_status(self) -> bool:
        """Whether the program fails with a cache alone, or without one alone."""
        return self.cached.status != self.plain.status

    @property
    def is_wrong_hit(self) -> bool:
        return self.is_wrong and not self.is_other_status and any(call.is_hit for call in self.cached.calls)

    def difference(self) -> str:
        """The first lines that differ, or the error of the cached run."""
        if self.is_other_status:
            return f"exit status {self.cached.status}, plainly {self.plain.status}: {self.cached.last_error}"
        pairs = zip(self.plain.results, self.cached.results, strict=False)
        first = next((pair for pair in pairs if pair[0] != pair[1]), None)
        if first is None:
            return f"{len(self.cached.results)} results, plainly {len(self.plain.results)}"
        return f"{first[1][:200]}, plainly {first[0][:200]}"


@dataclass
class Report:
    """All that is known of a program after its steps."""

    program: Program
    steps: list[Step] = field(default_factory=list)
    #: What makes the program itself unfit: the plain run is the authority.
    unsound: list[str] = field(default_factory=list)

    def of(self, *kinds: Kind) -> list[Step]:
        return [step for step in self.steps if step.kind in kinds]

    def wrong(self) -> list[Step]:
        return [step for step in self.steps if step.is_wrong]

    def never_stored(self) -> dict[str, str]:
        """The reason of the first call of each stage that no run stored or hit."""
        reasons: dict[str, str] = {}
        stored = set()
        for call in _calls(self.of("first", "again")):
            if call.raised:
                continue
            if call.stored or call.is_hit:
                stored.add(call.stage)
            reasons.setdefault(call.stage, f"{call.reason}: {call.detail}")
        return {stage: reason for stage, reason in reasons.items() if stage not in stored}

    def missed_again(self) -> dict[str, str]:
        """The reason of each stage that was stored and missed in the second run."""
        never = self.never_stored()
        return {
            call.stage: f"{call.reason}: {call.detail}"
            for call in _calls(self.of("again"))
            if not call.is_hit and not call.raised and call.stage not in never
        }

    def needless(self, step: Step) -> dict[str, str]:
        """The reason of each stage that missed in this step though it was a hit in the second run."""
        again = _calls(self.of("again"))
        hits = {call.stage for call in again} - {call.stage for call in again if not call.is_hit and not call.raised}
        missed = [call for call in step.cached.calls if not call.is_hit and not call.raised and call.stage in hits]
        return {call.stage: f"{call.reason}: {call.detail}" for call in missed}

    def data(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "name": self.program.name,
            "ordinary": self.program.ordinary,
            "idioms": self.program.idioms,
            "unsound": self.unsound,
            "never_stored": self.never_stored(),
            "missed_again": self.missed_again(),
            "steps": [
                {
                    "kind": step.kind,
                    "about": step.about,
                    "wrong": step.difference() if step.is_wrong else None,
                    "wrong_hit": step.is_wrong_hit,
                    "needless": self.needless(step) if step.kind in ("neutral", "moved") else {},
                    "calls": [[call.stage, call.reason, call.stored, call.detail] for call in step.cached.calls],
                    "seconds": [round(step.plain.seconds, 3), round(step.cached.seconds, 3)],
                    "messages": [line for line in step.cached.errors.splitlines() if "cachec" in line],
                }
                for step in self.steps
            ],
        }


def _calls(steps: Iterable[Step]) -> list[Call]:
    return [call for step in steps for call in step.cached.calls]


class Harness:
    """Runs one program in a folder of its own, and keeps what plain runs gave."""

    def __init__(self, program: Program, folder: Path, variables: Mapping[str, str]) -> None:
        self.program = program
        self.report = Report(program)
        self._folder = folder
        self._checkout = folder / "work" / program.name
        self._variables = variables

    def plain(self, checkout: Path, edit: Edit | None = None) -> Run:
        """Run without a cache."""
        return self._run(self.program.run, checkout, {"CACHEC_MODE": "off"}, edit)

    def cached(self, checkout: Path, edit: Edit | None = None) -> Run:
        """Run with the cache of this program."""
        return self._run(self.program.run, checkout, self._variables, edit)

    def check_plain(self) -> None:
        """Find out whether the program is sound: plain runs alone decide."""
        self._make_checkout()
        first = self._oracle()
        for kind, edit in self._edits():
            self._apply(edit)
            self._judge(kind, edit, first, self.plain(self._checkout, edit))
            self._revert(edit)

    def check(self) -> None:
        """All steps of the corpus."""
        self._make_checkout()
        moved = self._folder / "elsewhere" / "deeper" / f"{self.program.name}-2"
        shutil.copytree(self._checkout, moved)
        first = self._oracle()
        for kind in ("first", "again"):
            self._add(kind, "", first, self.cached(self._checkout))
        for kind, edit in self._edits():
            self._apply(edit)
            plain = self.plain(self._checkout, edit)
            self._judge(kind, edit, first, plain)
            self._add(kind, str(edit), plain, self.cached(self._checkout, edit))
            self._revert(edit)
        self._add("moved", "", self.plain(moved), self.cached(moved))

    def _oracle(self) -> Run:
        first, second = self.plain(self._checkout), self.plain(self._checkout)
        if first.status or not first.results:
            self.report.unsound.append(f"exit status {first.status}, {len(first.results)} results: {first.last_error}")
        if not first.equals(second):
            self.report.unsound.append(f"two plain runs differ: {first.results} and {second.results}")
        return first

    def _edits(self) -> list[tuple[Kind, Edit]]:
        neutral: list[tuple[Kind, Edit]] = [("neutral", edit) for edit in self.program.neutral]
        return [*neutral, *(("semantic", edit) for edit in self.program.semantic)]

    def _judge(self, kind: Kind, edit: Edit, first: Run, plain: Run) -> None:
        if plain.status or first.equals(plain) != (kind == "neutral"):
            self.report.unsound.append(f"{kind} edit {edit} gives {plain.results or plain.last_error}")

    def _add(self, kind: Kind, about: str, plain: Run, cached: Run) -> None:
        self.report.steps.append(Step(kind, about, plain, cached))

    def _make_checkout(self) -> None:
        self.program.copy_to(self._checkout)
        self._prepare()

    def _apply(self, edit: Edit) -> None:
        edit.apply(self._checkout)
        if edit.file in self.program.prepare:
            self._prepare()

    def _revert(self, edit: Edit) -> None:
        edit.revert(self._checkout, self.program)
        if edit.file in self.program.prepare:
            self._prepare()

    def _prepare(self) -> None:
        if self.program.prepare:
            done = self._run(self.program.prepare, self._checkout, {"CACHEC_MODE": "off"}, None)
            if done.status:
                raise InvalidProgram(f"{self.program.name}: prepare failed: {done.errors[-800:]}")

    def _run(self, command: list[str], checkout: Path, variables: Mapping[str, str], edit: Edit | None) -> Run:
        home = self._folder / "home"
        home.mkdir(exist_ok=True)
        log = self._folder / "calls.jsonl"
        log.unlink(missing_ok=True)
        environ = {
            **{name: os.environ[name] for name in _PASSED if name in os.environ},
            "PATH": os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath))),
            "HOME": str(home),
            "CACHEC_DIR": str(self._folder / "store"),
            "CACHEC_STATS_FILE": str(log),
            # Edits of one second and one size would find the bytecode of before, with and without a cache.
            "PYTHONDONTWRITEBYTECODE": "1",
            **variables,
            **self.program.env,
            **(edit.env if edit else {}),
        }
        start = time.perf_counter()
        with subprocess.Popen(
            _command(command),
            cwd=checkout,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=_LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its pools and tools too
                return Run(-1, [], _LIMIT, f"still running after {_LIMIT} s", _read_calls(log))
        seconds = time.perf_counter() - start
        if command[0] == "pytest":  # which reports failures on its standard output
            errors += output
        return Run(process.returncode, _WANTED.findall(output), seconds, errors, _read_calls(log))


def _command(words: list[str]) -> list[str]:
    match words:
        case ["python", *rest]:
            return [sys.executable, *rest]
        case ["notebook", file]:
            return [sys.executable, _NOTEBOOK, file]
        case ["pytest", *rest]:
            return [sys.executable, "-m", "pytest", "-rP", "-p", "no:cacheprovider", *rest]
        case _:
            raise InvalidProgram(f"a command starts with python, pytest or notebook: {words}")


def _read_calls(log: Path) -> list[Call]:
    if not log.exists():
        return []
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [Call(row["stage"], row["reason"], row.get("stored", False), row.get("detail", "")) for row in rows]


def check(program: Program, variables: Mapping[str, str], *, plain: bool = False) -> Report:
    """Run ``program`` through all steps with the cache's variables (``CACHEC_MODE`` among them).

    plain: Only without a cache, to find out whether the program is sound.
    """
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        harness = Harness(program, Path(folder), variables)
        try:
            harness.check_plain() if plain else harness.check()
        except InvalidProgram as error:
            harness.report.unsound.append(str(error))
        return harness.report
