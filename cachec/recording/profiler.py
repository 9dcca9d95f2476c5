"""Calls of Python functions by a profile function: on Python 3.11, and where other tools have what PEP 669 offers.

A profile function is called four times a call, and most calls are a tool's own: what it does then is what recording
costs. Where a process has an audit hook, ``frame.f_code`` and ``id()`` cost a microsecond each, as they raise events.
So what runs in the namespace of an installed module is passed over by that namespace alone, and no code is looked at.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any
from weakref import WeakSet

from cachec.recording import unobserved_processes
from cachec.recording.active_runs import Active
from cachec.recording.audit_hook import Handler, audit_hook
from cachec.recording.calling_frames import asker
from cachec.recording.library_lookups import MODULES, begins_work

#: What hands work to threads of a pool or a loop, by module and qualified name, with where these threads are told.
_POOL_THREADS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("concurrent.futures.thread", "ThreadPoolExecutor.submit"): lambda pool: pool._threads,
    ("multiprocessing.pool", "Pool._check_running"): lambda pool: pool._pool,
}


def _waiting_threads(queue: Any, threads: Iterable[threading.Thread]) -> Iterator[threading.Thread]:
    """Those of the threads that wait for an item of a ``queue.Queue``."""
    condition, frames = queue.not_empty, sys._current_frames()
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        is_waiting = frame is not None and frame.f_code.co_qualname == "Condition.wait"
        if frame is not None and is_waiting and frame.f_locals.get("self") is condition:
            yield thread


def _loop_thread(loop: Any, threads: Iterable[threading.Thread]) -> Iterator[threading.Thread]:
    """That of the threads in which an event loop runs."""
    yield from (thread for thread in threads if thread.ident == loop._thread_id)


#: What gives work to a thread that waits for it, by module and qualified name, with how to find that among others.
_GIVING: dict[tuple[str, str], Callable[[Any, Iterable[threading.Thread]], Iterator[threading.Thread]]] = {
    ("queue", "Queue.put"): _waiting_threads,
    ("asyncio.base_events", "BaseEventLoop.call_soon_threadsafe"): _loop_thread,
}
#: Modules in which a call may matter although they are installed.
_WATCHED_MODULES = MODULES.union(unobserved_processes.MODULES, (module for module, _ in (*_POOL_THREADS, *_GIVING)))


class Profile:
    """Tells of calls in the threads that begin runs, and in those that are started meanwhile.

    first: told of code that starts, with its frame; whether it need not be told again. is_tool: whether a file is one
    of an installed module. on: whether runs are active.
    """

    def __init__(
        self, runs: Active, first: Callable[[CodeType, FrameType], bool], is_tool: Callable[[str], bool]
    ) -> None:
        self._runs = runs
        self._first = first
        self._is_tool = is_tool
        self.on = False
        #: Namespaces of installed modules, by name.
        self._passed: dict[Any, dict[str, Any]] = {}
        #: Our functions, with whom each is there in place of; the one that is there in place of nobody is kept.
        self._ours: list[tuple[Any, Any]] = [(self._function(None), None)]
        #: By identity, code that every active run has been told of.
        self._reported: dict[int, CodeType] = {}
        #: Threads in which nothing is seen: they were there before.
        self._unseen: WeakSet[threading.Thread] = WeakSet()
        self._handlers: dict[str, Handler] = {"sys.setprofile": self._on_replace}

    def start(self) -> None:
        """A run begins in this thread."""
        self._reported = {}
        if not self.on:
            self.on = True
            self._unseen = WeakSet(threading.enumerate())
            threading.setprofile(self._in_place_of(threading.getprofile()))
            audit_hook().listen(self._handlers)
        self._unseen.discard(threading.current_thread())
        earlier = sys.getprofile()
        # cProfile's can't be called, and this run is not to be left out of its figures.
        if not self._ours_now(earlier) and (earlier is None or callable(earlier)):
            sys.setprofile(self._in_place_of(earlier))

    def stop(self) -> None:
        """No run is left: this thread and new ones get their own profile functions back; others as they go on."""
        self.on = False
        audit_hook().leave(self._handlers)
        self._passed.clear()
        self._reported = {}
        self._give_back(threading.getprofile(), threading.setprofile)
        self._give_back(sys.getprofile(), sys.setprofile)

    def sees(self) -> bool:
        """Whether calls in this thread are seen."""
        return self._ours_now(sys.getprofile())

    def _ours_now(self, function: Any) -> bool:
        return any(each is function for each, _ in self._ours)

    def _in_place_of(self, earlier: Any) -> Any:
        for function, replaced in self._ours:
            if replaced is earlier:
                return function
        self._ours.append((self._function(earlier), earlier))
        return self._ours[-1][0]

    def _give_back(self, function: Any, give: Callable[[Any], None]) -> None:
        for ours, earlier in self._ours:
            if ours is function:
                give(earlier)

    def _function(self, earlier: Any) -> Any:
        passed, starts = self._passed, self._starts

        def on_call(frame: FrameType, event: str, _argument: Any) -> None:
            if event == "call":
                namespace = frame.f_globals
                try:
                    is_passed = passed.get(namespace.get("__name__")) is namespace
                except TypeError:  # somebody's own namespace, with something as its name
                    is_passed = False
                if not is_passed:
                    starts(frame)

        def called_both(frame: FrameType, event: str, argument: Any) -> None:
            on_call(frame, event, argument)
            earlier(frame, event, argument)

        return on_call if earlier is None else called_both

    def _starts(self, frame: FrameType) -> None:
        code, reported = frame.f_code, self._reported
        identity = object.__hash__(code)  # id() raises an audit event
        if identity in reported:
            return
        if begins_work(code, frame):
            self._first(code, frame)  # for whom this thread works is another from here on
            return
        if not self._runs.here():
            self._unseen.add(threading.current_thread())  # what a run started goes on; its pool may be given more
            self._give_back(sys.getprofile(), sys.setprofile)
            return
        namespace = frame.f_globals
        name = namespace.get("__name__")
        if isinstance(name, str) and self._is_passed(name, namespace, code):
            self._passed[name] = namespace
        elif isinstance(name, str) and (name, code.co_qualname) in _POOL_THREADS:
            self._first(code, frame)
            self._on_threads(_POOL_THREADS[name, code.co_qualname](frame.f_locals["self"]))
        elif isinstance(name, str) and (name, code.co_qualname) in _GIVING:
            self._on_giving(_GIVING[name, code.co_qualname](frame.f_locals["self"], list(self._unseen)), frame)
        elif self._first(code, frame):
            reported[identity] = code

    def _is_passed(self, name: str, namespace: dict[str, Any], code: CodeType) -> bool:
        """Whether all that runs in a namespace is an installed module's own."""
        if name in _WATCHED_MODULES:
            return False
        module, file = sys.modules.get(name), namespace.get("__file__")
        own = module is not None and getattr(module, "__dict__", None) is namespace
        return own and isinstance(file, str) and self._is_tool(file) and self._is_tool(code.co_filename)

    def _on_threads(self, threads: Any) -> None:
        if any(thread in self._unseen for thread in threads):
            self._mark_incomplete("a pool of threads was there before the run, and what runs in them goes unseen")

    def _on_giving(self, threads: Iterator[threading.Thread], frame: FrameType) -> None:
        """Code of the project gives work to threads. What libraries (``logging``) give theirs is their own business."""
        back = frame.f_back
        while back is not None and str(back.f_globals.get("__name__")).partition(".")[0] == "asyncio":
            back = back.f_back
        for thread in threads if asker(back, self._runs.is_project) is not None else ():
            for observed in self._runs.acting():
                observed.incomplete = observed.incomplete or (
                    f"the thread {thread.name} was there before the run, which gave it work, and what runs in it goes "
                    "unseen: start it in the stage"
                )

    def _on_replace(self, _event: str, _args: tuple[Any, ...], frame: FrameType) -> None:
        if frame.f_globals.get("__name__") not in {__name__, "threading"}:
            self._mark_incomplete("the profile function, which tells what code runs, was replaced meanwhile")

    def _mark_incomplete(self, why: str) -> None:
        for observed in self._runs.here():
            observed.incomplete = observed.incomplete or why
