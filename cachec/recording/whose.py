"""Whose a context is, or a thread that a run has started: a new thread has no context of its own (Python's rule)."""

from __future__ import annotations

import threading
import weakref
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

#: The recorder of this context; None outside of every stage.
here: ContextVar[Any] = ContextVar("cachec_recorder", default=None)


def whose() -> Any:
    """The recorder of this context, else of the run that has started this thread; None outside of both."""
    found, started = here.get(), _started()
    if found is None and started:
        ident = threading.get_ident()
        for each, recorder in started:
            thread = each()
            if thread is not None and thread.ident == ident and thread.is_alive():
                return recorder
    return found


def starts(thread: threading.Thread) -> None:
    """A thread is started here: it runs for the same stage."""
    recorder = whose()
    if recorder is not None:
        _started().append((weakref.ref(thread), recorder))


def ends(recorder: object) -> None:
    """A run ends: threads that it has left behind are nobody's."""
    started = _started()
    if started:
        started[:] = [each for each in started if each[1] is not recorder]


@lru_cache(maxsize=1)
def _started() -> list[tuple[weakref.ref[threading.Thread], Any]]:
    """Threads that runs have started which go on."""
    return []
