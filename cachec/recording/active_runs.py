"""Which runs are going on in this process: the observers, of which a process has one each, report to these."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from types import FrameType

from cachec.recording.calling_frames import asker
from cachec.recording.observations import Observations
from cachec.recording.thread_owner import current, job_function


class Active:
    """The observed runs of this process. is_project: the test for a project's file name, of the last run that began.
    Between runs this refers to no cache, as that may be closed.

    What a thread does that works for a run (``current``) is observed by it and by the runs around it. Another thread
    could be anybody's: what it looks at is observed by all, but for runs of its own kind: two jobs of one function that
    a pool was given by somebody else are two callers of stages. What such a thread *makes* is an input.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: tuple[Observations, ...] = ()
        self.is_project: Callable[[str], bool] = _anything

    @property
    def every(self) -> tuple[Observations, ...]:
        """All that go on now."""
        return self._all

    def here(self) -> tuple[Observations, ...]:
        """Who observes what happens in this thread now."""
        return self.acting() or self._anybodys()

    def acting(self) -> tuple[Observations, ...]:
        """Return the runs that this thread works for now; none if this is unknown. A file that the thread then makes
        counts as an input, like that of another process."""
        recorder = current()
        if recorder is None:
            return ()
        every, observers = self._all, recorder.observers
        if len(every) == len(observers) == 1 and every[0] is observers[0]:
            return every
        by_id = {id(each): each for each in every}
        return tuple(by_id[id(each)] for each in observers if id(each) in by_id)

    def _anybodys(self) -> tuple[Observations, ...]:
        every = self._all
        job = job_function() if every else None
        return every if job is None else tuple(each for each in every if each.job is not job)

    def asked_by(self, frame: FrameType | None) -> tuple[Observations, ...]:
        """Return the runs that observe a query of ``frame``; none if no project code made it. Queries of a library for
        its own purposes, such as the number of processors, do not count."""
        return () if asker(frame, self.is_project) is None else self.here()

    def enter(
        self, observed: Observations, is_project: Callable[[str], bool], arm: Callable[[bool], None]
    ) -> Callable[[], None]:
        """Begin to observe; return the function that ends it. ``arm`` gets whether any run is observed."""
        observed.job = job_function()
        observed.acts = lambda: any(each is observed for each in self.acting())
        with self._lock:
            self._all = (*self._all, observed)
            self.is_project = is_project
            arm(True)

        def leave() -> None:
            with self._lock:
                self._all = tuple(each for each in self._all if each is not observed)
                if not self._all:
                    self.is_project = _anything
                    arm(False)

        return leave


def _anything(_name: str) -> bool:
    return True


@lru_cache(maxsize=1)
def active() -> Active:
    """The one of this process: interpreters have one set of hooks."""
    return Active()
