"""Find the code that asked for something: the nearest frame outside of the standard library."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from types import FrameType

from cachec.base.distributions import OWN_FOLDER
from cachec.recording.thread_owner import current

#: Modules of the standard library that look around for their own ends: to show source beside a message, to start a
#: program with this environment, to choose a folder for scratch files. (Source is shown by way of ``linecache``, which
#: shows it to whoever asks.)
_OWN_ENDS = frozenset(
    {
        "warnings",
        "traceback",
        "logging",
        "subprocess",
        "tempfile",
        "multiprocessing",
        "asyncio",
    }
)

#: Packages whose variables their plugins declare: they copy the environment as they compile.
DECLARED = frozenset({"executorch", "iree", "jax", "jaxlib", "onnxruntime", "torch", "triton", "tvm", "tvm_ffi"})

_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


def asker(frame: FrameType | None, is_project: Callable[[str], bool]) -> FrameType | None:
    """The nearest frame that is not the standard library's, where it is the project's and asks for itself. Where there
    is no such frame at all, the library's function was given to a thread that works for a run: the outermost."""
    library, packages = _library()
    outermost = frame
    while frame is not None:
        outermost = frame
        name = frame.f_code.co_filename
        if not name.startswith(library) or name.startswith(packages):
            return frame if is_project(name) else None
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _OWN_ENDS or removes(frame):
            return None
        frame = frame.f_back
    return None if current() is None else outermost


def asker_of_variable(frame: FrameType | None, is_project: Callable[[str], bool], name: str = "") -> FrameType | None:
    """The same of who asks for a variable of the environment (for all where ``name`` is empty), also by way of an
    installed library. What a library looks up as it is imported, by a name in its own code, or as one of ``DECLARED``
    is its own setting; so is what a plugin of cachec looks up."""
    library, packages = _library()
    outermost = frame
    while frame is not None:
        outermost, file = frame, frame.f_code.co_filename
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if file.startswith(library) and not file.startswith(packages):
            if package in _OWN_ENDS or file == _IMPORT_SYSTEM:
                return None
        elif is_project(file):
            return frame
        elif file.startswith(OWN_FOLDER) or package in DECLARED or package.startswith("cachec_"):
            return None
        if name and name in frame.f_code.co_consts:
            return None
        frame = frame.f_back
    return None if current() is None else outermost


def beyond_library(frame: FrameType | None) -> tuple[FrameType | None, set[str]]:
    """The nearest frame that is not the standard library's, and the names of the library's modules on the way."""
    library, packages = _library()
    passed: set[str] = set()
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(library) or name.startswith(packages):
            break
        passed.add(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    return frame, passed


def removes(frame: FrameType) -> bool:
    """Whether ``shutil.rmtree`` searches for the files to remove."""
    return frame.f_code.co_name.startswith(("rmtree", "_rmtree")) and frame.f_globals.get("__name__") == "shutil"


def takes_either(frame: FrameType | None) -> bool:
    """Whether ``os.makedirs`` or ``Path.mkdir`` makes a folder where it is all the same if one is there."""
    return (
        frame is not None
        and frame.f_globals.get("__name__") in {"os", "pathlib", "pathlib._local"}
        and frame.f_locals.get("exist_ok") is True
    )


@lru_cache(maxsize=1)
def _library() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What names of files in the standard library start with, and those that only seem to be."""
    folder = os.path.dirname(os.__file__)
    packages = tuple(os.path.join(folder, each, "") for each in ("site-packages", "dist-packages"))
    return ("<frozen", os.path.join(folder, "")), packages
