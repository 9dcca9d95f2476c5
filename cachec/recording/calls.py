"""Functions of ``os`` that are compiled, raise no audit event, and tell what is there: while a run is active ``os`` has
others in their place, which note what project code asks and then ask it. Whoever took one from ``os`` before
(``from os import stat``) is not seen.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from cachec.recording.active import Active
from cachec.recording.looks import content_asked, current_folder_asked, place_asked
from cachec.recording.observed import Observed

Note = Callable[[Observed, object], None]

#: What is asked of the first argument.
_ASKED: dict[str, Note] = {
    **dict.fromkeys(("stat", "lstat", "readlink", "getxattr", "listxattr"), content_asked),
    "access": place_asked,
    **dict.fromkeys(("getcwd", "getcwdb"), current_folder_asked),
}
#: Their own functions say what they ask (``recording.looks``).
_TELLING = frozenset({"genericpath", "posixpath", "pathlib", "pathlib._local", "glob"})


class Calls:
    """Puts the telling functions in their places, and takes them away."""

    def __init__(self, runs: Active) -> None:
        self._runs = runs
        self._own: dict[str, Any] = {name: getattr(os, name) for name in _ASKED}
        self._telling = {name: self._made(function, _ASKED[name]) for name, function in self._own.items()}

    def arm(self, on: bool) -> None:
        """A run begins (``on``), or the last one has ended. What somebody else put in a place stays."""
        for name, own in self._own.items():
            here, wanted = (own, self._telling[name]) if on else (self._telling[name], own)
            if getattr(os, name) is here:
                setattr(os, name, wanted)

    def _made(self, own: Callable[..., Any], note: Note) -> Callable[..., Any]:
        @functools.wraps(own)
        def telling(*args: Any, **kwargs: Any) -> Any:
            self._heard(note, args[0] if args else kwargs.get("path"), sys._getframe(1))
            return own(*args, **kwargs)

        for capable in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            if own in capable:
                capable.add(telling)
        return telling

    def _heard(self, note: Note, asked: object, frame: FrameType) -> None:
        if frame.f_globals.get("__name__") in _TELLING or isinstance(asked, int):
            return
        for observed in self._runs.asked_by(frame):
            note(observed, asked)
