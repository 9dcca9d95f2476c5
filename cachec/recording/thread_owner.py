"""Find the stage run that a thread works for: by its context, the job of a pool, or the thread that started it.

Neither a job nor a new thread has a context of its own (but for ``asyncio.to_thread``).
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Sequence
from contextvars import Context, ContextVar
from functools import lru_cache, partial
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol


class RecordedRun(Protocol):
    """What is used of a ``recorder.ReadRecorder``, which works with this module."""

    is_on: bool

    @property
    def observers(self) -> Sequence[object]:
        """The ``Observations`` of this run and of those around it."""

    @property
    def parent(self) -> RecordedRun | None:
        """The run around this one."""


#: The recorder of this context; None outside of every stage.
here: ContextVar[RecordedRun | None] = ContextVar("cachec_recorder", default=None)

_POOL = "concurrent.futures.thread"


def current() -> RecordedRun | None:
    """The recorder of the innermost stage, of those that run, for which this thread works. None where there is none, or
    where nobody knows: a thread that was there before may have its work from anywhere."""
    found = _going_on(here.get())
    if found is None:
        table = _thread_table()
        if (job := table.job()) is not None:
            return _going_on(job.recorder)
        if table.lent:
            thread = _this_thread()
            job = _job(thread)
            if job is not None:
                return _going_on(job.recorder)
            lent, recorder = table.lent.get(id(thread), (None, None))
            if isinstance(lent, weakref.ref) and lent() is thread:
                return _going_on(recorder)
    return found


def starts(thread: threading.Thread) -> None:
    """A thread is started here."""
    _lend(thread, weakref.ref(thread))


def gives(keywords: dict[str, Any]) -> None:
    """A ``ThreadPoolExecutor`` is given a job here, with these keyword arguments: a dict of its own tells one job
    from another."""
    _lend(keywords, keywords)


def begins(item: object) -> None:
    """A job of a ``ThreadPoolExecutor`` begins in this thread. item: as the pool has it, until it is done."""
    table = _thread_table()
    function, args, keywords = _job_parts(item)
    _, recorder = table.lent.pop(id(keywords), (None, None))
    table.thread.job = _Job(weakref.ref(item), recorder, _code(function, args), table.epoch)


def runs() -> None:
    """A run begins."""
    table = _thread_table()
    with table.lock:
        table.going_on += 1


def ends() -> None:
    """A run has ended: what it has left behind is that of the run around it, or nobody's."""
    table = _thread_table()
    with table.lock:
        table.going_on -= 1
        if not table.going_on:
            table.epoch = object()
    for place, (thing, recorder) in list(table.lent.items()):
        around = _going_on(recorder)
        if around is None:
            table.lent.pop(place, None)
        elif around is not recorder and place in table.lent:
            table.lent[place] = thing, around


def has_threads(recorder: RecordedRun) -> bool:
    """Whether other threads may work for a run: this one is of a pool, or the run has started one that lives, or has
    given a pool a job that has not begun."""
    if here.get() is None:
        return True
    lent = [thing for thing, owner in list(_thread_table().lent.values()) if owner is recorder]
    threads = [thing() if isinstance(thing, weakref.ref) else thing for thing in lent]
    return any(not isinstance(each, threading.Thread) or each.is_alive() for each in threads if each is not None)


def job_function() -> CodeType | None:
    """The function that this thread runs for a ``ThreadPoolExecutor``, inside of what hands it on; None where it runs
    none that Python code is known of."""
    job = _job(_this_thread())
    return None if job is None else job.function


def thread_mark() -> object:
    """What stands for this thread: its number may be another's once it has ended."""
    return _thread_table().thread.mark


class _Job(NamedTuple):
    """item: gone once the job is done. recorder: whose it is. epoch: what was lent out when it was met."""

    item: weakref.ref[Any]
    recorder: RecordedRun | None
    function: CodeType | None
    epoch: object


class _Thread(threading.local):
    """Of each thread."""

    def __init__(self) -> None:
        self.job: _Job | None = None
        self.mark = object()


class _ThreadTable:
    """lent: by identity, threads that runs have started and keyword arguments of jobs that they gave and that have not
    begun, each with whose. going_on: how many runs do. epoch: another one each time that there were none: jobs may
    have begun unseen then."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread = _Thread()
        self.lent: dict[int, tuple[object, Any]] = {}
        self.going_on = 0
        self.epoch = object()

    def job(self) -> _Job | None:
        """What this thread was met to do, while it does."""
        job = self.thread.job
        return job if job is not None and job.item() is not None and job.epoch is self.epoch else None


@lru_cache(maxsize=1)
def _thread_table() -> _ThreadTable:
    return _ThreadTable()


def _going_on(recorder: RecordedRun | None) -> RecordedRun | None:
    """What a run leaves behind may go on for those around it."""
    while recorder is not None and not recorder.is_on:
        recorder = recorder.parent
    return recorder


def _lend(thing: object, owner: object) -> None:
    recorder = current()
    if recorder is not None:
        _thread_table().lent[id(thing)] = owner, recorder


def _this_thread() -> threading.Thread | None:
    """None for one that Python has not started, and knows nothing of."""
    found: threading.Thread | None = getattr(threading, "_active", {}).get(threading.get_ident())
    return found


def _job(thread: threading.Thread | None) -> _Job | None:
    """What this thread does for a pool now (``concurrent/futures/thread.py``)."""
    table = _thread_table()
    if (job := table.job()) is not None:
        return job
    if getattr(getattr(thread, "_target", None), "__module__", "") != _POOL:
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_qualname == "_WorkItem.run" and frame.f_globals.get("__name__") == _POOL:
            item = frame.f_locals.get("self")
            if item is not None:
                begins(item)
            return table.thread.job
        frame = frame.f_back
    return None


def _job_parts(item: object) -> Any:
    """Function, arguments and keyword arguments; Python 3.14 has them as one."""
    task = getattr(item, "task", None)
    is_task = isinstance(task, tuple) and len(task) == 3
    return task if is_task else [getattr(item, name, None) for name in ("fn", "args", "kwargs")]


def _code(function: Any, args: Any) -> CodeType | None:
    """Of a function, inside of partials and of what hands a context on (``asyncio.to_thread``)."""
    for _ in range(8):
        if isinstance(function, partial):
            function, args = function.func, (*function.args, *args)
        elif isinstance(_attribute(function, "__self__"), Context) and args:
            function, args = args[0], args[1:]
        elif (wrapped := _attribute(function, "__wrapped__")) is not None:
            function = wrapped
        else:
            break
    function = _attribute(function, "__func__") or function
    code = _attribute(function, "__code__") or _attribute(_attribute(type(function), "__call__"), "__code__")
    return code if isinstance(code, CodeType) else None


def _attribute(value: object, name: str) -> Any:
    """None where it has none, or fails to say."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - it is the program's own code, which has nothing to do with any stage
        return None
