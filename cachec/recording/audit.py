"""Files, folders and modules that a run looks at, as audit events tell (PEP 578).

An audit hook can't be removed, so a process has one; outside of runs it returns at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from types import FrameType
from typing import Any

from cachec.base.distributions import OWN_FOLDER
from cachec.recording.active import Active, active
from cachec.recording.observed import Observed

#: Opens a file for writing alone.
_WRITES = os.O_WRONLY
#: Makes or empties a file whatever else it is opened for.
_MAKES = os.O_TRUNC | os.O_EXCL
#: Modules whose frames read a module's own code: that counts as an import, not as a file.
_IMPORTERS = ("<frozen importlib._bootstrap_external>", "<frozen importlib._bootstrap>", "<frozen zipimport>")
#: What can't be read again alike: named, never refused.
_UNREPEATABLE = ("/proc/", "/sys/", "/dev/")
_SOCKETS = frozenset({"socket.connect", "socket.getaddrinfo", "urllib.Request"})
#: Events whose first argument is a path that comes to be: written, made, or moved there.
_MADE = {"os.mkdir": 0, "tempfile.mkdtemp": 0, "tempfile.mkstemp": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1}
_LISTED = frozenset({"os.listdir", "os.scandir"})


class AuditObserver:
    """Tells active runs of the files that are opened, the folders that are listed and the modules that are imported."""

    def __init__(self, runs: Active) -> None:
        self._runs = runs
        self._is_project: Callable[[str], bool] = lambda _name: True
        self._on = False
        sys.addaudithook(self._heard)

    def arm(self, is_project: Callable[[str], bool], on: bool) -> None:
        """A run begins (``on``), or the last one has ended."""
        self._is_project, self._on = is_project, on

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if event == "open":
            self._opened(args)
        elif event == "import":
            self._imported(str(args[0]))
        elif event in _LISTED and not _by_importer(sys._getframe(1)):
            self._each(lambda observed, path: observed.listed.setdefault(path), args[0] or os.curdir)
        elif event in _MADE:
            self._each(lambda observed, path: observed.made.setdefault(path), args[_MADE[event]])
        elif event in _SOCKETS:
            for observed in self._runs.here():
                observed.unrepeatable.setdefault(f"a connection ({event})")

    def _opened(self, args: tuple[Any, ...]) -> None:
        flags = args[2] if len(args) > 2 and isinstance(args[2], int) else 0
        if flags & _MAKES or flags & _WRITES:
            self._each(lambda observed, path: observed.made.setdefault(path), args[0])
        elif _by_importer(sys._getframe(2)):
            self._each(lambda observed, path: observed.sources.setdefault(path), args[0])
        elif not _for_messages(sys._getframe(2)) and not _by_cachec(sys._getframe(2)):
            self._each(_opened, args[0])

    def _each(self, note: Callable[[Observed, str], Any], path: object) -> None:
        """``note`` an absolute path with every run that is active here; a descriptor was opened by a path before."""
        if isinstance(path, int) or path is None:
            return
        try:
            text = os.fsdecode(path)  # type: ignore[arg-type]
            place = text if text.startswith("/") else os.path.join(os.getcwd(), text)
        except (TypeError, OSError):
            return  # no path, or the current folder is gone: the call fails by itself
        for observed in self._runs.here():
            note(observed, os.path.normpath(place))

    def _imported(self, name: str) -> None:
        """A module is looked for that is not in ``sys.modules``; it counts where project code asks for it."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith(("<frozen importlib", "<frozen zipimport")):
            frame = frame.f_back
        while frame is not None and frame.f_globals.get("__name__") in {"importlib", "pkgutil", "runpy"}:
            frame = frame.f_back
        if frame is not None and self._is_project(frame.f_code.co_filename):
            for observed in self._runs.here():
                observed.imported.setdefault(name)


def _by_importer(frame: FrameType | None) -> bool:
    """Whether the import system reads a module."""
    while frame is not None and frame.f_code.co_filename in {"<frozen codecs>", "<frozen os>"}:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename in _IMPORTERS


def _for_messages(frame: FrameType | None) -> bool:
    """Whether source is read to be shown beside a warning or an error."""
    asked = False
    while frame is not None and frame.f_globals.get("__name__") in {"tokenize", "linecache", "warnings", "traceback"}:
        asked = asked or frame.f_globals["__name__"] in {"warnings", "traceback"}
        frame = frame.f_back
    return asked


def _by_cachec(frame: FrameType | None) -> bool:
    """Whether cachec itself opens: what that means for a run its handles record."""
    library = os.path.dirname(os.__file__)
    while frame is not None and frame.f_code.co_filename.startswith(("<frozen", library + "/")):
        if "-packages/" in frame.f_code.co_filename:
            return False
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(OWN_FOLDER)


def _opened(observed: Observed, path: str) -> None:
    if path.startswith(_UNREPEATABLE):
        observed.unrepeatable.setdefault(path)
    elif not observed.own(path):
        (observed.opened if os.path.lexists(path) else observed.absent).setdefault(path)


@lru_cache(maxsize=1)
def audit_observer() -> AuditObserver:
    """The one of this process."""
    return AuditObserver(active())
