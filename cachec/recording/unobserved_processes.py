"""Programs and processes that work for a run unobserved: the result must not be stored.

Audit events tell of programs and forks. Functions of Python's library tell of processes that were started before: a
pool, a queue or a connection to one. They are Python code, so they are seen as all code that runs is.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType
from typing import NamedTuple

from cachec.recording.calling_frames import beyond_library
from cachec.recording.thread_owner import current

#: Modules of the standard library that start programs to look at the machine, for whoever imports a library. The state
#: ``host`` and the part ``platform`` of a key stand for what ``platform`` tells, also a project.
_OF_MACHINE = frozenset({"platform"})
_FOR_LIBRARIES = frozenset({"ctypes.util", "uuid", *_OF_MACHINE})


_PACKAGES = ("multiprocessing", "multiprocess")
#: By qualified name: the modules that have such a function, and what it uses.
_USES: dict[str, tuple[frozenset[str], str]] = {
    "BaseProcess.start": (frozenset(f"{each}.process" for each in _PACKAGES), "a process (multiprocessing)"),
    "Pool._check_running": (frozenset(f"{each}.pool" for each in _PACKAGES), "a pool of processes"),
    "ProcessPoolExecutor.submit": (
        frozenset({"concurrent.futures.process", "loky.process_executor", "joblib.externals.loky.process_executor"}),
        "a ProcessPoolExecutor",
    ),
    "Popen.communicate": (frozenset({"subprocess"}), "a running program (Popen.communicate)"),
    **dict.fromkeys(
        (f"{kind}.{does}" for kind in ("Queue", "SimpleQueue") for does in ("put", "get")),
        (frozenset(f"{each}.queues" for each in _PACKAGES), "a queue of multiprocessing"),
    ),
    **dict.fromkeys(
        (f"_ConnectionBase.{does}" for does in ("send", "send_bytes", "recv", "recv_bytes", "recv_bytes_into")),
        (frozenset(f"{each}.connection" for each in _PACKAGES), "a connection of multiprocessing"),
    ),
}
#: The modules that have one.
MODULES = frozenset(module for modules, _ in _USES.values() for module in modules)
_POOLS = frozenset(f"{each}.pool" for each in _PACKAGES)


def use_of(code: CodeType, frame: FrameType) -> str | None:
    """What the code that starts in ``frame`` uses of other processes, in words; None for nearly all code."""
    use = _USES.get(code.co_qualname)
    if use is None or frame.f_globals.get("__name__") not in use[0]:
        return None
    if code.co_name == "_check_running":
        pool = type(frame.f_locals.get("self"))
        return None if any(each.__qualname__ == "ThreadPool" for each in pool.__mro__) else use[1]
    above: FrameType | None = frame
    while above is not None and str(above.f_globals.get("__name__")).partition(".")[0] in _PACKAGES:
        if above.f_globals.get("__name__") in _POOLS:
            return None  # what a pool does inside was told of when the pool was given its work
        above = above.f_back
    return use[1]


class Starter(NamedTuple):
    """The code that started a program or uses a process."""

    #: The name of the module; empty for a function of Python's library that a thread of a run was given.
    module: str
    #: ``file:line``, empty where ``module`` is.
    place: str


def starter(frame: FrameType | None, is_project: Callable[[str], bool]) -> Starter | None:
    """The code that has a program or a process started in ``frame``. None where it takes no part in what the run makes:
    the machine is looked at."""
    asking, passed = beyond_library(frame)
    if asking is None:
        return None if current() is None else Starter("", "")
    helpers = _OF_MACHINE if is_project(asking.f_code.co_filename) else _FOR_LIBRARIES
    if not helpers.isdisjoint(passed):
        return None
    return Starter(str(asking.f_globals.get("__name__") or "?"), f"{asking.f_code.co_filename}:{asking.f_lineno}")
