"""Functions of Python's library by which code looks at something that raises no audit event: whether a path is there,
a module that may be imported already, which distributions are installed. They are Python code, so they are seen as all
code that runs is (``recording.code``).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from importlib import util
from types import CodeType, FrameType

from cachec.base.fsio import identity_if_there
from cachec.recording.observed import Observed, is_absolute

#: What a frame of such a function says that is looked at; noted with a run.
Look = Callable[[Observed, FrameType], None]


def look_of(code: CodeType, frame: FrameType) -> Look | None:
    """What the code that starts in ``frame`` looks at; None for nearly all code."""
    look = _LOOKS.get(code.co_qualname)
    return look[1] if look is not None and frame.f_globals.get("__name__") in look[0] else None


def _first(frame: FrameType) -> object:
    return frame.f_locals[frame.f_code.co_varnames[0]]


def place_asked(observed: Observed, path: object) -> None:
    """Whether something is at a path, and whether that is a folder."""
    place = observed.given(path)
    if place is None or observed.own(place):
        return
    try:
        status = os.stat(place)
    except (OSError, ValueError):
        observed.absent.setdefault(place)
    else:
        observed.there.setdefault(place, stat.S_ISDIR(status.st_mode))


def content_asked(observed: Observed, path: object) -> None:
    """More than whether something is there: its content counts."""
    place = observed.given(path)
    if place is not None:
        content_at(observed, place)


def content_at(observed: Observed, place: str) -> None:
    """The same of an absolute path; what the run made itself does not count."""
    if observed.own(place):
        return
    state = identity_if_there(place)
    if state is None:
        observed.absent.setdefault(place)
    elif os.path.isdir(place):
        observed.there.setdefault(place, True)
    else:
        observed.opened.setdefault(place, state)


def current_folder_asked(observed: Observed, _asked: object) -> None:
    """What the current folder is."""
    observed.asked_cwd = True


def _is_there(observed: Observed, frame: FrameType) -> None:
    place_asked(observed, _first(frame))


def _is_such(observed: Observed, frame: FrameType) -> None:
    """``Path.exists`` asks no more than whether the path is there."""
    back = frame.f_back
    asks_less = back is not None and str(back.f_globals.get("__name__")).partition(".")[0] == "pathlib"
    (place_asked if asks_less else content_asked)(observed, _first(frame))


def _made_absolute(observed: Observed, frame: FrameType) -> None:
    """What comes of a relative path holds the current folder."""
    try:
        observed.asked_cwd = observed.asked_cwd or not is_absolute(_first(frame))
    except TypeError:
        return


def _module(observed: Observed, frame: FrameType) -> None:
    """A module is imported by its name, or asked for (``find_spec``)."""
    name, package = frame.f_locals["name"], frame.f_locals["package"]
    names = observed.named if frame.f_code.co_name == "import_module" else observed.sought
    if isinstance(name, str):
        try:
            names.setdefault(util.resolve_name(name, package))
        except (ImportError, ValueError, TypeError):
            return  # the call itself fails in this way


def _distribution(observed: Observed, frame: FrameType) -> None:
    observed.installed.setdefault(str(frame.f_locals["name"]))


def _distributions(observed: Observed, frame: FrameType) -> None:
    back = frame.f_back
    while back is not None and back.f_globals.get("__name__", "").startswith("importlib.metadata"):
        if back.f_code.co_name == "from_name":
            return
        back = back.f_back
    observed.installed.setdefault("*")


_PATHS = ("genericpath", "posixpath")
_PATHLIB = ("pathlib", "pathlib._local")
_METADATA = ("importlib.metadata",)
#: By the qualified name of a function: the modules that have it, and what it looks at.
_LOOKS: dict[str, tuple[tuple[str, ...], Look]] = {
    **dict.fromkeys(("exists", "isfile", "isdir", "lexists", "islink", "ismount"), (_PATHS, _is_there)),
    **dict.fromkeys(("Path.exists", "Path.is_file", "Path.is_dir"), (_PATHLIB, _is_there)),
    **dict.fromkeys(("getsize", "getmtime", "getctime", "getatime"), (_PATHS, _is_such)),
    **dict.fromkeys(("Path.stat", "Path.lstat"), (_PATHLIB, _is_such)),
    **dict.fromkeys(("abspath", "realpath"), (_PATHS, _made_absolute)),
    "Path.absolute": (_PATHLIB, _made_absolute),
    "Path.cwd": (_PATHLIB, current_folder_asked),
    "find_spec": (("importlib.util",), _module),
    "import_module": (("importlib",), _module),
    "Distribution.from_name": (_METADATA, _distribution),
    "MetadataPathFinder.find_distributions": (_METADATA, _distributions),
}
#: The modules that have one.
MODULES = frozenset(module for modules, _ in _LOOKS.values() for module in modules)
