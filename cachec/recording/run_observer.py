"""Observes a run: what it accesses although no name, argument or handle declares it.

By induction this is enough for what ran: with equal reads so far, a run takes the same next step. Where a memo answers
in place of code, nothing runs; there the static part of the key is needed, which the net adds to and never replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from cachec.recording.active_runs import active
from cachec.recording.audit_observer import AuditObserver
from cachec.recording.code_observer import CodeObserver
from cachec.recording.observations import Observations
from cachec.recording.os_calls import OsCalls
from cachec.recording.variable_lookups import VariableObserver, variables


class NativeReads(Protocol):
    """Watches folders for what native code opens, from its construction on."""

    #: Not all is known.
    overflowed: bool
    #: Paths, as the stage's code names them, at which nothing was then, and where it may look.
    missing: list[str]

    def drain(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        """The files that were there before and may have been read so far; those that were read and are others now;
        those that were changed before they were opened."""

    def counting(self, path: str) -> Iterable[str]:
        """The paths by which a file counts that was opened at ``path``; none for one that does not."""

    def pause(self) -> AbstractContextManager[None]:
        """Until the body ends, files that are opened are known, or others open them. What changes there counts."""

    def close(self) -> None:
        """End the watch."""


class Net:
    """Observes one run, each time that it is spread.

    is_project: whether a file name is a project's. beside: watches folders for this run. tables: what was in the
    tables of Python's library before the run, by their states.
    """

    def __init__(
        self,
        is_project: Callable[[str], bool],
        native_reads: NativeReads | None = None,
        tables: Mapping[str, list[Any]] | None = None,
    ) -> None:
        self.observed = Observations()
        self.native_reads = native_reads
        self.tables = tables or {}
        self._is_project = is_project

    @contextmanager
    def spread(self) -> Iterator[Observations]:
        """Observe what happens in this context until the body ends."""
        leave = active().enter(self.observed, self._is_project, _observers().arm)
        try:
            yield self.observed
        finally:
            self.observed.incomplete = self.observed.incomplete or _observers().code.why_incomplete()
            leave()


class _Observers(NamedTuple):
    """Those of this process: interpreters have one set of hooks."""

    audit: AuditObserver
    variables: VariableObserver
    calls: OsCalls
    code: CodeObserver

    def arm(self, on: bool) -> None:
        """Begin with a run (``on``), or end with the last one. Code events come last and end first, as they also report
        the code of this package."""
        for each in self if on else reversed(self):
            each.arm(on)


@lru_cache(maxsize=1)
def _observers() -> _Observers:
    return _Observers(AuditObserver(active()), variables(), OsCalls(active()), CodeObserver(active()))
