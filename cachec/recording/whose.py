"""Whose what happens in a thread is: that of its context, of a job that a pool was given, or of a thread that was
started. Neither has a context of its own (Python's rule, but for ``asyncio.to_thread``)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextvars import Context, ContextVar
from functools import lru_cache, partial
from types import CodeType, FrameType
from typing import Any, NamedTuple

#: The recorder of this context; None outside of every stage.
here: ContextVar[Any] = ContextVar("cachec_recorder", default=None)


def current() -> Any:
    """The recorder of the innermost stage, of those that run, for which this thread works. None where there is none, or
    where nobody knows: a thread that was there before may have its work from anywhere."""
    found = here.get()
    if found is None and (lent := _lent()):
        thread = _this_thread()
        job = _job_of(thread)
        found = lent.get(id(thread if job is None else job.keywords), (None, None))[1]
    while found is not None and not found.is_on:
        found = found.parent  # what a run leaves behind may go on for those around it
    return found


def starts(thread: threading.Thread) -> None:
    """A thread is started here."""
    _lend(thread)


def gives(keywords: dict[str, Any]) -> None:
    """A ``ThreadPoolExecutor`` is given a job here, with these keyword arguments: a dict of its own tells one job
    from another."""
    _lend(keywords)


def ends() -> None:
    """A run has ended: what it has left behind is nobody's."""
    lent = _lent()
    for place, (_, recorder) in list(lent.items()):
        if not recorder.is_on:
            lent.pop(place, None)


def job_function() -> CodeType | None:
    """The function that this thread runs for a ``ThreadPoolExecutor``, inside of what hands a context on; None where it
    runs none that Python code is known of."""
    job = _job_of(_this_thread())
    function: Any = None if job is None else job.function
    args = () if job is None else job.args
    while isinstance(function, partial):
        function, args = function.func, (*function.args, *args)
    if isinstance(getattr(function, "__self__", None), Context) and args:
        function = args[0]  # asyncio.to_thread
    function = getattr(function, "__wrapped__", function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _this_thread() -> threading.Thread | None:
    """None for one that Python has not started, and knows nothing of."""
    found: threading.Thread | None = getattr(threading, "_active", {}).get(threading.get_ident())
    return found


class _Job(NamedTuple):
    function: Any
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]


def _job_of(thread: threading.Thread | None) -> _Job | None:
    """What this thread does for a pool now (``concurrent/futures/thread.py``)."""
    if getattr(getattr(thread, "_target", None), "__module__", "") != "concurrent.futures.thread":
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (
            frame.f_code.co_qualname == "_WorkItem.run"
            and frame.f_globals.get("__name__") == "concurrent.futures.thread"
        ):
            item = frame.f_locals.get("self")
            told = getattr(item, "task", None) or [getattr(item, name, None) for name in ("fn", "args", "kwargs")]
            return _Job(*told) if isinstance(told[2], dict) else None
        frame = frame.f_back
    return None


def _lend(thing: object) -> None:
    recorder = current()
    if recorder is not None:
        _lent()[id(thing)] = thing, recorder


@lru_cache(maxsize=1)
def _lent() -> dict[int, tuple[object, Any]]:
    """By identity, threads that runs have started and keyword arguments of jobs that they gave, each with whose."""
    return {}
