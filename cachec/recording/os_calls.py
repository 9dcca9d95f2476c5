"""Wrappers for compiled functions of ``os`` that raise no audit event; installed while a run is active.

A name that was taken from ``os`` before (``from os import stat``) is not observed.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from typing import Any

from cachec.base.instances import is_instance
from cachec.base.paths import descriptor_path, in_folder
from cachec.recording.active_runs import Active
from cachec.recording.library_lookups import (
    allowed_asked,
    attributes_asked,
    content_asked,
    current_folder_asked,
    own_status_asked,
    read_from,
    status_asked,
)
from cachec.recording.observations import Observations

Note = Callable[[Observations, object], None]

#: What is asked of the first argument; None where an event tells, but not from which folder.
_ASKED: dict[str, Note | None] = {
    **dict.fromkeys(("getxattr", "listxattr"), attributes_asked),
    **dict.fromkeys(("stat", "fstat"), status_asked),
    **dict.fromkeys(("read", "readv", "pread", "preadv"), read_from),
    **dict.fromkeys(("lstat", "readlink"), own_status_asked),
    "access": allowed_asked,
    **dict.fromkeys(("getcwd", "getcwdb"), current_folder_asked),
    "open": None,
}
#: Their own functions say what they ask (``recording.library_lookups``).
_TELLING = frozenset({"genericpath", "posixpath", "pathlib", "pathlib._local", "glob"})


class OsCalls:
    """Puts the telling functions in their places, and takes them away."""

    def __init__(self, runs: Active) -> None:
        self._runs = runs
        self._own: dict[str, Any] = {name: getattr(os, name) for name in _ASKED}
        self._telling = {name: self._wrapper(function, _ASKED[name]) for name, function in self._own.items()}

    def arm(self, on: bool) -> None:
        """Begin with a run (``on``), or end with the last one. Replacements by other code stay."""
        for name, own in self._own.items():
            here, wanted = (own, self._telling[name]) if on else (self._telling[name], own)
            if getattr(os, name) is here:
                setattr(os, name, wanted)

    def _wrapper(self, own: Callable[..., Any], note: Note | None) -> Callable[..., Any]:
        @functools.wraps(own)
        def telling(*args: Any, **kwargs: Any) -> Any:
            if note is not None:
                self._heard(note, args[0] if args else kwargs.get("path", kwargs.get("fd")), kwargs, sys._getframe(1))
            return own(*args, **kwargs)

        for capable in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            if own in capable:
                capable.add(telling)
        return telling

    def _heard(self, note: Note, asked: object, how: dict[str, Any], frame: FrameType) -> None:
        if frame.f_globals.get("__name__") in _TELLING:
            return
        number = asked
        if isinstance(asked, int):
            asked = descriptor_path(asked)
            if asked is None or not os.path.exists(asked):
                return  # a pipe, a socket, a file without a name
        if note is attributes_asked and frame.f_globals.get("__name__") == "shutil":
            note = content_asked  # it copies them
        if how.get("follow_symlinks") is False:
            note = own_status_asked
        for observed in self._runs.asked_by(frame):
            if note is read_from and number not in observed.descriptors:
                continue  # whoever opened it was seen
            note(observed, in_folder(asked, how.get("dir_fd")))


def caller_arguments(frame: FrameType) -> tuple[FrameType, dict[str, Any]]:
    """Who called the function of ``os`` that raised an event in ``frame``, and the keywords that it was given."""
    if frame.f_code.co_name == "telling" and frame.f_globals.get("__name__") == __name__ and frame.f_back is not None:
        return frame.f_back, frame.f_locals["kwargs"]
    return frame, {}


def reads_standard_input(code: CodeType, namespace: dict[str, Any]) -> bool:
    """Whether code names the standard input of the process, as ``sys`` has it or as it was taken from there."""
    streams = [each for each in (sys.stdin, sys.__stdin__) if each is not None]
    if any(namespace.get(name) is each for name in code.co_names for each in streams):
        return True
    if _STREAMS.isdisjoint(code.co_names):
        return False
    before = ""  # other things have an attribute of that name: processes
    for each in dis.get_instructions(code):
        of_sys = before == "sys" or namespace.get(before) is sys
        if each.argval in _STREAMS and each.opname.startswith("LOAD_") and of_sys:
            return True
        before = each.argval if each.opname.startswith("LOAD_") and isinstance(each.argval, str) else ""
    return False


_STREAMS = frozenset({"stdin", "__stdin__"})


def unobserved_names(code: CodeType, namespace: dict[str, Any]) -> Iterator[str]:
    """The names by which code calls functions that were taken from ``os`` before, which are not seen."""
    for name in code.co_names:
        value = namespace.get(name)
        if is_instance(value, ModuleType) and value.__name__ == "posix":
            yield from sorted(_ASKED.keys() & set(code.co_names))
        if is_instance(value, BuiltinFunctionType) and value.__module__ == "posix" and _ASKED.get(value.__name__):
            yield value.__name__
