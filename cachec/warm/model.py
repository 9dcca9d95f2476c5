"""The data model of warming: targets, their rows, and the result of each."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from cachec.model import Outcome, Reason

#: Seconds that a row may take, unless its target says otherwise. A target that never ends is then ended and reported.
DEFAULT_TIMEOUT = 3600.0


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a target and each of its rows say alike: an entry point or a command, and how it is run.

    call: ``module:function``, a stage or a function that calls stages; its parameters are the axes and ``arguments``.
    command: a command line, run through ``cachec exec``; ``options`` are those of ``cachec exec`` itself.
    files: globs of files that touch the target, relative to ``folder``. path: folders that modules are imported from.
    env: variables. timeout: seconds that a row may take. isolated: a process of its own for every row.
    folder: what relative paths start from, and the current folder of a row.
    """

    call: str = ""
    command: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = {}
    after: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    timeout: float = DEFAULT_TIMEOUT
    isolated: bool = False
    folder: str = ""


class Target(Work, frozen=True, kw_only=True):
    """One declaration, for every row of a matrix.

    matrix: axis -> values; every combination is a row, but those that agree with one of ``exclude``. after: names of
    targets that have to be warm before; a row waits for those of their rows that agree with it in every axis that both
    have.
    """

    name: str
    matrix: Mapping[str, tuple[Any, ...]] = {}
    exclude: tuple[Mapping[str, Any], ...] = ()


class Row(Work, frozen=True, kw_only=True):
    """One combination of a target's matrix: what one worker runs at a time.

    id: ``name``, or ``name[axis=value,...]``. after: ids of the rows that come before. path, folder: absolute.
    """

    id: str
    target: str
    axes: dict[str, Any]


class Status(enum.Enum):
    """How a row ended."""

    HIT = "hit"
    COMPILED = "compiled"
    WOULD_MISS = "would-miss"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is asked: to run a row, or only to look if it would miss.

    counted: whether a look that found everything counts as use of it. needed: whether the files that its command writes
    are to be in place, for another row that comes after this one or for whoever asked. store, namespace: where entries
    are looked up when ``files`` asks for what the row depends on.
    """

    row: Row
    check: bool
    counted: bool = False
    needed: bool = False
    files: bool = False
    store: str = ""
    namespace: str = "default"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a row. seconds: wall time. outcomes: of the calls of stages, in order. error: why it failed, in one
    line. output: the end of what was printed, and the traceback. files: files and listed folders that it depends on,
    written: files that it wrote, both only where that was asked for.
    """

    id: str
    status: Status
    seconds: float = 0.0
    outcomes: tuple[Outcome, ...] = ()
    error: str = ""
    output: str = ""
    files: tuple[str, ...] = ()
    written: tuple[str, ...] = ()

    @property
    def missed(self) -> tuple[Outcome, ...]:
        """The calls that did not hit."""
        return tuple(each for each in self.outcomes if not each.hit)

    @property
    def saved(self) -> float:
        """Seconds that its hits saved."""
        return sum(each.saved - each.seconds for each in self.outcomes if each.hit)

    def why(self) -> str:
        """What missed and why, or what failed; empty for a hit."""
        # A stage that raised has raised the error of the row, unless the target went on.
        reasons = "; ".join(
            reason_words(each) for each in self.missed if not (self.error and each.detail == self.error)
        )
        return f"{self.error}; {reasons}" if self.error and reasons else self.error or reasons


def reason_words(outcome: Outcome) -> str:
    """``pkg.build: option-changed: target: a -> b``."""
    if outcome.reason is Reason.REQUIRED:
        words = outcome.detail.removeprefix("miss:")  # the detail holds the reason that the call would have had
    else:
        words = ": ".join(filter(None, (outcome.reason.value.partition(":")[2], outcome.detail)))
    return f"{outcome.stage}: {words}"
