"""Which lines of the project each test runs, in whatever process. Copied by ``tree`` to where every Python finds it.

A process writes ``test<TAB>file<TAB>line`` to the file that the environment names, once each. By ``sys.monitoring``,
which costs little, or on Python 3.11 by ``sys.settrace``; there, of a function called often in one test only the first
calls count, and of a long loop its first rounds.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

#: Set to the file of the lines where they are asked for; ROOT: whose sources count.
FILE, ROOT = "MUTANTS_LINES", "MUTANTS_ROOT"

_CALLS, _EVENTS = 30, 5000

#: From Python 3.12 on, and the number of a tool that no other takes.
_MONITORING: Any = getattr(sys, "monitoring", None)
_TOOL = 4


class LineLog:
    """The lines of one process, written as they come."""

    def __init__(self, file: str, root: str) -> None:
        self._fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._folders = tuple(os.path.join(root, folder, "") for folder in ("cachec", "plugins"))
        self._root = len(root) + 1
        self._codes: dict[int, Any] = {}  # they live on, as another could get the number of one that is gone
        self._left: dict[int, int] = {}
        self._find: set[tuple[str, int]] = set()
        self.test = ""

    def begin(self, test: str) -> None:
        """What runs in this thread from now on, and in threads begun from now on, is of this test."""
        self.test = test
        self._left.clear()
        self._find.clear()
        if _MONITORING is not None:
            if _MONITORING.get_tool(_TOOL) is None:
                _MONITORING.use_tool_id(_TOOL, "mutants")
                _MONITORING.register_callback(_TOOL, _MONITORING.events.LINE, self.line)
            _MONITORING.set_events(_TOOL, _MONITORING.events.LINE)
            _MONITORING.restart_events()
            return
        threading.settrace(self.called)
        sys.settrace(self.called)

    def end(self) -> None:
        """Nothing is of a test any more."""
        if _MONITORING is not None:
            _MONITORING.set_events(_TOOL, 0)
            return
        sys.settrace(None)
        threading.settrace(None)

    def called(self, frame: Any, event: str, arg: object) -> Any:
        """The global trace function."""
        code = frame.f_code
        number = id(code)
        left = self._left.get(number)
        if left is None:
            self._codes[number] = code
            left = _CALLS if code.co_filename.startswith(self._folders) else 0
        self._left[number] = left - 1
        if left <= 0:
            return None
        events = 0

        def line(frame: Any, event: str, arg: object) -> Any:
            nonlocal events
            events += 1
            if event == "line":
                self.line(code, frame.f_lineno)
            return line if events < _EVENTS else None

        return line

    def line(self, code: Any, number: int) -> Any:
        """A line begins. Gives what says that it need not be told of again."""
        place = (code.co_filename, number)
        if place not in self._find and code.co_filename.startswith(self._folders):
            self._find.add(place)
            os.write(self._fd, f"{self.test}\t{place[0][self._root :]}\t{number}\n".encode())
        return None if _MONITORING is None else _MONITORING.DISABLE


def _start() -> None:
    test, _, phase = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")
    if phase and FILE in os.environ:
        LineLog(os.environ[FILE], os.environ[ROOT]).begin(test)


_start()
