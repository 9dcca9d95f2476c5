"""Which functions start in this process: by ``sys.monitoring``, or by a profiler on Python 3.11.

That profiler is written in C. A profile function in Python would write the variables of each frame back after each
call, and undo what other threads did to them meanwhile (python/cpython#74929).
"""

from __future__ import annotations

import _lsprof
import gc
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Protocol

#: ``sys.monitoring``'s tools that no debugger, coverage or profiler takes.
_TOOL_IDS = (4, 3, 5)

#: Modules that switch between stacks or interpreters, where a profiler loses sight.
_SWITCHES = ("greenlet", "_xxsubinterpreters")


class StartedCode(Protocol):
    """Tells which code has started since it was made. After a fork the parent knows nothing of the child.

    Code is listed, not put into sets: that of two files is equal where both have the same text.
    """

    def begin_run(self) -> None:
        """From now on, what starts is ``late``, although it has started before."""

    def codes(self) -> list[CodeType]:
        """All code of interest."""

    def late(self) -> list[CodeType]:
        """That since ``begin_run``, and maybe more."""

    def files(self) -> set[str]:
        """The files of all code that ``late`` would list if everything were of interest."""

    def is_complete(self) -> bool:
        """Whether nothing else can have started."""


def watch(is_of_interest: Callable[[CodeType], bool]) -> StartedCode:
    """Begin to watch, in all threads."""
    if hasattr(sys, "monitoring"):
        return _MonitoringBackend(is_of_interest)
    return _ProfilerBackend(is_of_interest)


class _MonitoringBackend:
    def __init__(self, is_of_interest: Callable[[CodeType], bool]) -> None:
        self._is_of_interest = is_of_interest
        self._codes: dict[int, CodeType] = {}
        self._late: dict[int, CodeType] = {}
        self._files: set[str] = set()
        self._monitoring: Any = vars(sys)["monitoring"]
        self._tool = next((tool for tool in _TOOL_IDS if self._monitoring.get_tool(tool) is None), None)
        if self._tool is not None:
            event = self._monitoring.events.PY_START
            self._monitoring.use_tool_id(self._tool, "cachec")
            self._monitoring.register_callback(self._tool, event, self._on_start)
            self._monitoring.set_events(self._tool, event)

    def begin_run(self) -> None:
        self._late.clear()
        self._files.clear()
        if self._tool is not None:
            self._monitoring.restart_events()

    def codes(self) -> list[CodeType]:
        return list(self._codes.values())

    def late(self) -> list[CodeType]:
        return list(self._late.values())

    def files(self) -> set[str]:
        return self._files.copy()

    def is_complete(self) -> bool:
        return self._tool is not None

    def _on_start(self, code: CodeType, _offset: int) -> object:
        self._files.add(code.co_filename)
        if self._is_of_interest(code):
            self._codes[id(code)] = self._late[id(code)] = code
        return self._monitoring.DISABLE


class _Profiler(_lsprof.Profiler):
    """A profiler of one thread. was_replaced: whether code has put another in its place, and then this one back."""

    was_replaced = False

    def __init__(self) -> None:
        super().__init__(builtins=False, subcalls=False)

    def __call__(self, _frame: FrameType, _event: str, _argument: object) -> None:
        """``sys.setprofile`` was given this profiler, as ``sys.getprofile`` had returned it."""
        self.was_replaced = True
        self.enable(builtins=False, subcalls=False)

    def started_code(self) -> list[CodeType]:
        """The code that has started and returned, or yielded, at least once."""
        was_enabled = gc.isenabled()
        gc.disable()  # what the collector calls would start meanwhile, and entries be passed over
        try:
            entries = self.getstats()
        finally:
            if was_enabled:
                gc.enable()
        return [entry.code for entry in entries if isinstance(entry.code, CodeType)]


class _ProfilerBackend:
    """Each thread has a profiler, from its start. Threads that C code makes have none, nor those without ``Thread``."""

    def __init__(self, is_of_interest: Callable[[CodeType], bool]) -> None:
        self._is_of_interest = is_of_interest
        self._states = _ThreadStates()
        self._early: list[CodeType] = []
        self._in_threads: list[_Profiler] = []
        self._is_alone = sys.getprofile() is None and threading.getprofile() is None
        self._main = _Profiler()
        if self._is_alone:
            threading.setprofile(self._in_thread)
            self._main.enable(builtins=False, subcalls=False)

    def begin_run(self) -> None:
        if not self._is_in_place():
            self._is_alone = False
            return
        before, self._main = self._main, _Profiler()
        before.disable()  # one that is enabled takes any other away when it ends
        self._main.enable(builtins=False, subcalls=False)
        self._early += filter(self._is_of_interest, before.started_code())
        self._is_alone &= not before.was_replaced

    def codes(self) -> list[CodeType]:
        return self._early + self.late()

    def late(self) -> list[CodeType]:
        return list(filter(self._is_of_interest, self._all_late()))

    def files(self) -> set[str]:
        return {code.co_filename for code in self._all_late()}

    def _all_late(self) -> list[CodeType]:
        found = self._main.started_code()
        for each in self._in_threads.copy():
            found += each.started_code()
        return found

    def is_complete(self) -> bool:
        """Each thread that was made has ended, with its profiler in place."""
        profilers = self._in_threads.copy()
        end: CodeType = vars(threading.Thread)["_delete"].__code__
        return (
            self._is_alone
            and self._is_in_place()
            and not any(each.was_replaced for each in (self._main, *profilers))
            and sum(any(code is end for code in each.started_code()) for each in profilers)
            == self._states.created_count()
            and not any(name in sys.modules for name in _SWITCHES)
        )

    def _is_in_place(self) -> bool:
        found: object = sys.getprofile()
        return found is self._main

    def _in_thread(self, _frame: FrameType, _event: str, _argument: object) -> None:
        """The profile function of a new thread, until it is called."""
        profiler = _Profiler()
        self._in_threads.append(profiler)
        profiler.enable(builtins=False, subcalls=False)


class _ThreadStates:
    """Counts threads, also those that C code makes: each gets a number when it first runs Python code."""

    def __init__(self) -> None:
        import ctypes  # only Python 3.11 needs it

        api = ctypes.pythonapi
        self._interpreter = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyInterpreterState_Get", api))
        self._new = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("PyThreadState_New", api))
        self._number = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(("PyThreadState_GetID", api))
        self._clear = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyThreadState_Clear", api))
        self._delete = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyThreadState_Delete", api))
        self._expected = self._next() + 1

    def created_count(self) -> int:
        """How many were made since this was."""
        number = self._next()
        self._expected += 1  # the state that tells the number is one itself
        return number - self._expected + 1

    def _next(self) -> int:
        state = self._new(self._interpreter())
        number: int = self._number(state)
        self._clear(state)
        self._delete(state)
        return number
