"""Which code runs: ``sys.monitoring`` (PEP 669) on Python 3.12 and later, a profile function on 3.11.

Each code object is told once a run: the callback disables the event for it, and ``restart_events`` arms all of them
when a run begins. With PEP 669 all threads are seen; a profile function sees the thread that the run was begun in, and
threads that are started meanwhile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from cachec.recording.active import Active, active
from cachec.recording.frames import asker
from cachec.recording.looks import look_of
from cachec.recording.observed import Ran

#: Tool ids of PEP 669 that no kind of tool has by convention (0 debugger, 1 coverage, 2 profiler, 5 optimiser).
_TOOL_IDS = (4, 3)
_NAME = "cachec"

_MONITORING: Any = getattr(sys, "monitoring", None)


class CodeObserver:
    """Tells active runs of project code that starts. is_project: whether a file name is a project's."""

    def __init__(self, runs: Active) -> None:
        self._runs = runs
        self._kinds: dict[str, bool] = {}
        self._is_project: Callable[[str], bool] = lambda _name: True
        self._tool: int | None = None
        self._profiled: dict[int, Any] = {}
        self._for_threads: Any = None
        #: By ``id``, code that the runs of now have been told of, or that is none of a project's.
        self._told: dict[int, CodeType] = {}

    def arm(self, is_project: Callable[[str], bool], on: bool) -> None:
        """A run begins (``on``), or the last one has ended."""
        self._is_project = is_project
        self._told = {}
        if _MONITORING is not None and self._claim():
            self._monitor(on)
        elif on:
            self._profile()
        else:
            self._unprofile()

    def blind(self) -> str:
        """Why code runs unseen in this thread while there are runs; empty where it is seen."""
        seen = self._tool is not None or sys.getprofile() == self._called
        return "" if seen else "a profiler has the one place that there is for what tells which code runs"

    # --- PEP 669

    def _claim(self) -> bool:
        """Have a tool id; False where other tools have all that may be taken."""
        if self._tool is not None:
            return True
        monitoring = _MONITORING
        for number in _TOOL_IDS:
            if monitoring.get_tool(number) in {None, _NAME}:
                if monitoring.get_tool(number) is None:
                    monitoring.use_tool_id(number, _NAME)
                events = monitoring.events
                monitoring.register_callback(number, events.PY_START, self._started)
                monitoring.register_callback(number, events.PY_RESUME, self._started)
                self._tool = number
                return True
        return False

    def _monitor(self, on: bool) -> None:
        assert self._tool is not None
        events = _MONITORING.events
        _MONITORING.set_events(self._tool, events.PY_START | events.PY_RESUME if on else 0)
        if on:
            _MONITORING.restart_events()

    def _started(self, code: CodeType, _offset: int) -> Any:
        frame = sys._getframe(1)
        if not self._project(code):
            # What is looked at is another thing with each call.
            return None if self._looked(code, frame) else _MONITORING.DISABLE
        self._note(code, frame)
        # What two runs do at once must be told to each: it may not be disabled for the second by the first.
        return None if self._runs.several else _MONITORING.DISABLE

    # --- the profile function

    def _profile(self) -> None:
        """Observe this thread and those that it starts, until no run is left; another's profile function goes on."""
        earlier = sys.getprofile()
        if earlier == self._called or not (earlier is None or callable(earlier)):
            return  # cProfile's can't be called, and this run is not to be left out of its figures
        if earlier is not None:
            self._profiled[threading.get_ident()] = earlier
        if threading.getprofile() != self._called:
            self._for_threads = threading.getprofile()
            threading.setprofile(self._called)
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        # Four events a call come here: the first lines are what recording costs.
        if event == "call" and id(frame.f_code) not in self._told:
            self._first_call(frame)
        if self._profiled:
            earlier = self._profiled.get(threading.get_ident())
            if earlier is not None:
                earlier(frame, event, argument)

    def _first_call(self, frame: FrameType) -> None:
        code = frame.f_code
        if not self._runs.here():
            self._unprofile()
        elif self._project(code):
            self._note(code, frame)
            if not self._runs.several:
                self._told[id(code)] = code
        elif not self._looked(code, frame):
            self._told[id(code)] = code

    def _unprofile(self) -> None:
        """Give this thread and new ones their own profile functions back."""
        if sys.getprofile() == self._called:
            sys.setprofile(self._profiled.pop(threading.get_ident(), None))
        if threading.getprofile() == self._called:
            threading.setprofile(self._for_threads)

    # --- both

    def _project(self, code: CodeType) -> bool:
        name = code.co_filename
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = self._is_project(name)
        return kind

    def _looked(self, code: CodeType, frame: FrameType) -> bool:
        """Whether this is code of Python's library that looks at something; it is noted if the project asks."""
        look = look_of(code, frame)
        if look is not None and asker(frame.f_back, self._is_project) is not None:
            for observed in self._runs.here():
                look(observed, frame)
        return look is not None

    def _note(self, code: CodeType, frame: FrameType) -> None:
        for observed in self._runs.here():
            if id(code) not in observed.ran:
                observed.ran[id(code)] = Ran(code, frame.f_globals)


@lru_cache(maxsize=1)
def code_observer() -> CodeObserver:
    """The one of this process."""
    return CodeObserver(active())
