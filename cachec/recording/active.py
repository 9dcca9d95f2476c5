"""Which runs are going on in this process: the observers, of which a process has one each, report to these."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache
from types import FrameType

from cachec.recording.frames import asker
from cachec.recording.observed import Observed

#: The observed runs of this context, the innermost first; empty outside, and in threads that a stage started.
_here: ContextVar[tuple[Observed, ...]] = ContextVar("cachec_observed", default=())


class Active:
    """The observed runs of this process. is_project: whether a file name is a project's, as the run that began last has
    it: between runs nothing of a cache that may have been closed is held.

    What happens in the context of a run, and in threads that it starts (which have no context of their own), is
    observed by it and by the runs around it. Another thread could be anybody's: what it looks at is observed by all.
    What it *makes* is an input of a run's, which is told only to those that it is known to act for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: tuple[Observed, ...] = ()
        #: Threads that were started while there were runs, each with those that it acts for.
        self._started: list[tuple[weakref.ref[threading.Thread], tuple[Observed, ...]]] = []
        #: Pools that were given work meanwhile, each with those for whom that may have been.
        self._given: list[tuple[object, tuple[Observed, ...]]] = []
        self.is_project: Callable[[str], bool] = _anything

    @property
    def every(self) -> tuple[Observed, ...]:
        """All that go on now."""
        return self._all

    def here(self) -> tuple[Observed, ...]:
        """Who observes what happens in this thread now. A task may outlive the run that made its context: what it does
        later could be anybody's."""
        every, here = self._all, _here.get()
        if len(every) == len(here) == 1 and every[0] is here[0]:
            return here
        going_on = self._going_on(here)
        if going_on:
            return going_on
        of_pool = self._of_pool()
        return every if of_pool is None else of_pool

    def acting(self) -> tuple[Observed, ...]:
        """Those on whose behalf this thread does something now: as ``here``, but nobody where that is not known, as in
        a thread that was there before. What it makes counts as an input then, as what another process makes does."""
        return self._going_on(_here.get()) or self._of_thread()

    def _of_thread(self) -> tuple[Observed, ...]:
        """Those for whom this thread was started."""
        if self._started:
            ident = threading.get_ident()
            for started, runs in self._started:
                thread = started()
                if thread is not None and thread.ident == ident and thread.is_alive():
                    return self._going_on(runs)
        return ()

    def _of_pool(self) -> tuple[Observed, ...] | None:
        """Those who gave work to the pool that this thread is of: all that it does is somebody's who did, and nobody's
        where none of these runs did. None for another thread, which may have its work from anywhere."""
        thread = getattr(threading, "_active", {}).get(threading.get_ident())
        told: tuple[object, ...] = getattr(thread, "_args", ())
        is_worker = getattr(getattr(thread, "_target", None), "__module__", "") == "concurrent.futures.thread"
        pool = told[0]() if is_worker and told and isinstance(told[0], weakref.ref) else None
        if pool is None:
            return None
        given = {id(each): each for one, runs in self._given if one is pool for each in runs}
        return self._going_on(tuple(given.values()))

    def starts(self, thread: threading.Thread) -> None:
        """This thread starts another one, which acts for whom this one does."""
        self._started.append((weakref.ref(thread), self.acting()))

    def gives(self, pool: object) -> None:
        """A ``ThreadPoolExecutor`` is given work here."""
        runs = self._going_on(_here.get()) or self._of_pool()
        runs = self._all if runs is None else runs
        if runs and not any(one is pool and each == runs for one, each in self._given):
            self._given.append((pool, runs))

    def _going_on(self, runs: tuple[Observed, ...]) -> tuple[Observed, ...]:
        every = self._all
        return tuple(each for each in runs if any(each is one for one in every))

    def asked_by(self, frame: FrameType | None) -> tuple[Observed, ...]:
        """Those who observe what ``frame`` asks for; nobody where no project code asks. What a library looks at for its
        own ends, such as the number of processors, is its own business."""
        return () if asker(frame, self.is_project) is None else self.here()

    def enter(
        self, observed: Observed, is_project: Callable[[str], bool], arm: Callable[[bool], None]
    ) -> Callable[[], None]:
        """Begin to observe; returns what ends it. ``arm`` is told whether there is anything to be observed by then."""
        around = _here.get() or self._of_thread()
        observed.acts = lambda: any(each is observed for each in self.acting())
        with self._lock:
            self._all = (*self._all, observed)
            self.is_project = is_project
            arm(True)
        token = _here.set((observed, *around))

        def leave() -> None:
            _here.reset(token)
            with self._lock:
                self._all = tuple(each for each in self._all if each is not observed)
                if not self._all:
                    self._started, self._given = [], []
                    self.is_project = _anything
                    arm(False)

        return leave


def _anything(_name: str) -> bool:
    return True


@lru_cache(maxsize=1)
def active() -> Active:
    """The one of this process: interpreters have one set of hooks."""
    return Active()
