"""What a row depends on, as files: for ``cachec watch``, which then knows what to look after.

Gathered while the row is looked at in a worker: what was opened for reading and which folders were listed (an audit
hook, PEP 578), the sources of imported modules, and what the traces of its entries had read: files, folders, tools, and
files that were looked for and absent. None of it proves anything: a file that is missing here costs a report, never a
right result.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from importlib.util import source_from_cache
from types import FrameType
from typing import Any

import msgspec

from cachec.base.anchors import is_anchored
from cachec.base.distributions import OWN_FOLDER
from cachec.base.paths import absolute
from cachec.errors import StoreFault
from cachec.recording.audit_hook import Handler, audit_hook
from cachec.store.store import Store
from cachec.warm.model import Result, Task
from cachec.warm.run import run_task

_CACHED = f"{os.sep}__pycache__{os.sep}"
_SITE = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_NOWHERE = ("/proc/", "/sys/", "/dev/")


class _OpenedPaths:
    """Paths opened for reading and for writing, and folders listed, while a task runs."""

    def __init__(self) -> None:
        self.reported: set[str] = set()
        self.paths: set[str] = set()
        self.written: set[str] = set()
        self.handlers: dict[str, Handler] = {"open": self._open, "os.listdir": self._list, "os.scandir": self._list}

    def _open(self, _event: str, given: tuple[Any, ...], _frame: FrameType) -> None:
        path, _, flags = given
        if isinstance(path, str | bytes):
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            (self.written if writes else self.paths).add(absolute(os.fsdecode(path)))

    def _list(self, _event: str, given: tuple[Any, ...], _frame: FrameType) -> None:
        if isinstance(given[0], str):
            self.paths.add(absolute(given[0]))


@functools.cache
def _opened_paths() -> _OpenedPaths:
    return _OpenedPaths()


@functools.cache
def _store(folder: str, namespace: str) -> Store:
    return Store(folder, namespace)


def run_traced(task: Task) -> Result:
    """Run a task, and name the files that it depends on, as absolute paths."""
    opened = _opened_paths()
    opened.paths.clear()
    opened.written.clear()
    audit_hook().listen(opened.handlers)
    try:
        result = run_task(task)
    finally:
        audit_hook().leave(opened.handlers)
    # What it wrote itself is no reason to look again: that would never end.
    paths = {_source(path) for path in opened.paths - opened.written}
    paths.update(_modules())
    paths.update(_reads(task, result))
    store = os.path.abspath(task.store) + os.sep
    # Installed packages have thousands of files, the same for every row: a worker reports them once.
    paths = {path for path in paths if not any(part in path for part in _SITE) or path not in opened.reported}
    opened.reported |= paths
    library = os.path.dirname(os.__file__) + os.sep
    remaining = {
        path
        for path in paths
        if not path.startswith((*_NOWHERE, store, OWN_FOLDER))
        and _CACHED not in path
        and not (path.startswith(library) and not any(part in path for part in _SITE))
    }
    return msgspec.structs.replace(result, files=tuple(sorted(remaining)), written=tuple(sorted(opened.written)))


def _source(path: str) -> str:
    """The source of a compiled module; any other path as it is."""
    if path.endswith(".pyc"):
        try:
            return source_from_cache(path)
        except ValueError:
            return path
    return path


def _modules() -> Iterator[str]:
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and os.path.isabs(path):
            yield path


def _reads(task: Task, result: Result) -> Iterator[str]:
    if not task.store:
        return
    store = _store(task.store, task.namespace)
    for key in {each.key for each in result.outcomes if each.key}:
        try:
            entry = store.lookup(key)
        except StoreFault:
            continue  # the row's own result says what is wrong with the store
        for trace in entry.traces if entry is not None else ():
            for read in trace.reads:
                if is_anchored(read.where):
                    continue  # from a folder that only the stage's process knows
                if read.kind in {"file", "absent", "listing", "content", "names"} or (
                    read.kind == "tool" and "/" in read.where
                ):
                    yield absolute(read.where)
