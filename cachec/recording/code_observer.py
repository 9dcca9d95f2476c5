"""Which code runs: ``sys.monitoring`` (PEP 669) on Python 3.12 and later, else a profile function.

Each code object is told once a run: the callback disables the event for it, and ``restart_events`` arms all of them
when a run begins. With PEP 669 all threads are seen; a profile function sees the thread that the run was begun in, and
threads that are started meanwhile.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

from cachec.recording.active_runs import Active
from cachec.recording.library_lookups import begins_work, find_handler, gives_work, starts_thread
from cachec.recording.observations import ExecutedCode
from cachec.recording.profiler import Profile
from cachec.recording.thread_owner import begins, gives, starts
from cachec.recording.unobserved_processes import starter, use_of

#: Tool ids of PEP 669 that no kind of tool has by convention (0 debugger, 1 coverage, 2 profiler, 5 optimiser).
_TOOL_IDS = (4, 3)
_NAME = "cachec"

_MONITORING: Any = getattr(sys, "monitoring", None)


class CodeObserver:
    """Tells active runs of project code that starts."""

    def __init__(self, runs: Active) -> None:
        self._runs = runs
        self._kinds: dict[str, bool] = {}
        self._tool: int | None = None
        self._profile = Profile(runs, self._first, lambda file: not self._project(file))
        #: The number of runs that began: events from before a run must be reported to it again.
        self._begun = 0

    def arm(self, on: bool) -> None:
        """A run begins (``on``), or the last one has ended."""
        self._begun += on
        if on and not self._profile.on:
            self._claim()
        if self._tool is not None:
            self._monitor(on)
        elif on:
            self._profile.start()
        else:
            self._profile.stop()

    def why_incomplete(self) -> str:
        """Why code runs unseen in this thread while there are runs; empty where it is seen."""
        if self._tool is None:
            reason = self._profile.sees()
            return "" if reason else "a profiler has the one place that there is for what tells which code runs"
        reason = _MONITORING.get_tool(self._tool) == _NAME and _MONITORING.get_events(self._tool) == _events()
        return "" if reason else "another tool took the place in sys.monitoring from which code is told that runs"

    # --- PEP 669

    def _claim(self) -> None:
        """Have a tool id, where other tools have not taken all that may be had."""
        if _MONITORING is None:
            return
        for number in _TOOL_IDS:
            if _MONITORING.get_tool(number) in {None, _NAME}:
                if _MONITORING.get_tool(number) is None:
                    _MONITORING.use_tool_id(number, _NAME)
                events = _MONITORING.events
                for event in (events.PY_START, events.PY_RESUME):
                    _MONITORING.register_callback(number, event, self._on_start)
                _MONITORING.register_callback(number, events.PY_THROW, self._on_throw)
                self._tool = number
                return
        self._tool = None

    def _monitor(self, on: bool) -> None:
        assert self._tool is not None
        if _MONITORING.get_tool(self._tool) == _NAME:
            _MONITORING.set_events(self._tool, _events() if on else 0)
        if on:
            _MONITORING.restart_events()

    def _on_start(self, code: CodeType, _offset: int) -> Any:
        begun, disable = self._begun, _MONITORING.DISABLE
        is_reported = self._first(code, sys._getframe(1))
        # No call from here on: a run that another thread begins now would miss the event of this code.
        return disable if is_reported and begun == self._begun else None

    def _on_throw(self, code: CodeType, _offset: int, _error: BaseException) -> None:
        """A generator goes on where it is thrown into; that can't be disabled."""
        self._first(code, sys._getframe(1))

    # --- both

    def _first(self, code: CodeType, frame: FrameType) -> bool:
        """Tell of code that starts; whether that is done with for the runs of now."""
        if self._project(code.co_filename):
            return self._note(code, frame)
        if starts_thread(code, frame):
            starts(frame.f_locals["self"])
            return False
        if begins_work(code, frame):
            begins(frame.f_locals["self"])
            return False
        if gives_work(code, frame):
            gives(frame.f_locals["kwargs"])
            return False
        used = use_of(code, frame)
        if used is not None:
            by = starter(frame, self._runs.is_project)
            if by is not None and by.module:
                for observed in self._runs.here():
                    observed.undeclared.setdefault(used, by)
            return False
        handler = find_handler(code, frame)
        if handler is None:
            return True
        for observed in self._runs.asked_by(frame.f_back):
            handler(observed, frame)
        return False  # each call may access another thing

    def _project(self, name: str) -> bool:
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = self._runs.is_project(name)
        return kind

    def _note(self, code: CodeType, frame: FrameType) -> bool:
        here = self._runs.here()
        for observed in here:
            if id(code) not in observed.executed_code:
                observed.executed_code[id(code)] = ExecutedCode(code, frame.f_globals)
        # The same code may run for another run next, which then needs the event.
        return all(id(code) in observed.executed_code for observed in self._runs.every)


def _events() -> int:
    events = _MONITORING.events
    return int(events.PY_START | events.PY_RESUME | events.PY_THROW)
