"""The state of the files that targets depend on, and which of them changed. Asked of the files themselves: an event
only says when to ask, so that one that was lost costs time and nothing else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import NamedTuple

from cachec.base import fsio
from cachec.base.mounts import Mounts
from cachec.errors import StoreFault
from cachec.store.rows import Reader

_SITE = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

#: What a file looks like: its identity; a folder's names; or None where nothing is there.
State = tuple[object, ...] | None

#: How editors and compilers begin and end the names of files that are not meant to stay.
_PASSING = ((".", "#", "__pycache__"), ("~", ".swp", ".tmp", ".part"))


class _KnownFile(NamedTuple):
    state: State
    installed: bool


class Files:
    """Paths and the state that each was last seen in.

    Files of installed packages are many and change rarely: they are looked at only when that is asked for.
    """

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self._known: dict[str, _KnownFile] = {}
        self._written: set[str] = set()
        self._followed: frozenset[str] = frozenset()
        self._sites: set[str] = set()
        self._folder = os.path.join(store, "")
        self._index = os.path.join(store, "index", "cache.db")
        self._rows = Reader(self._index, Mounts(), busy_seconds=0.0)
        self._store = self._store_state()

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, paths: Iterable[str], since: float) -> list[str]:
        """Look after these too; those of them that changed after ``since`` (Unix time), when they were last read.

        Times of files are a tick behind the clock: what changed within a tick before ``since`` counts as after it.
        """
        late: list[str] = []
        for path in paths:
            if path in self._known:
                continue
            installed = any(part in path for part in _SITE)
            state = self._state(path)
            self._known[path] = _KnownFile(state, installed)
            if isinstance(state, fsio.Identity) and state.ctime_ns / 1e9 > since - _TICK:
                late.append(path)
            folder = os.path.dirname(path)
            if path.endswith(".py") and not installed and folder not in self._known:
                # A module that comes or goes may hide another.
                self._known[folder] = _KnownFile(self._state(folder), installed)
        return late

    def ignore(self, paths: Iterable[str]) -> None:
        """Names that a target makes itself do not count in the folders that it lists."""
        fresh = {path for path in paths if path not in self._written}
        self._written |= fresh
        for folder in {os.path.dirname(path) for path in fresh}:
            if folder in self._known:
                self._known[folder] = _KnownFile(self._state(folder), self._known[folder].installed)

    def changed(self, *, installed: bool, entries: bool, folders: bool) -> list[str]:
        """Return the paths with another state than at the last call.

        installed: those of installed packages too. entries: new entries count as a change of the store; else only that
        its database is another, or gone. The store's change is told until ``accept_store``. folders: what lists other
        names, too.
        """
        paths: list[str] = []
        for path, known in self._known.items():
            if known.installed and not installed:
                continue
            state = self._state(path)
            listed = any(_is_folder(each) for each in (state, known.state))
            if state != known.state and (folders or not listed):
                self._known[path] = _KnownFile(state, known.installed)
                paths.append(path)
        state = self._store_state()
        if state[0] != self._store[0] or (entries and state != self._store):
            paths.append(self._index)
        return paths

    def is_own(self, path: str) -> bool:
        """Whether a path is in the store: changes there are cachec's own."""
        return path.startswith(self._folder)

    def accept_store(self) -> None:
        """The store as it is now is what the targets are looked at with, or what compiling them made of it."""
        self._store = self._store_state()

    def close(self) -> None:
        """Let go of the index."""
        self._rows.disconnect()

    def concerns(self, path: str) -> bool:
        """Whether an event on a path may mean a change: others in the same folders are not worth a look."""
        folder, name = os.path.split(path)
        return (
            path in self._known
            or path in self._followed
            or folder in self._sites
            or (folder in self._known and not _passes(name) and path not in self._written)
        )

    def folders(self) -> list[str]:
        """The folders where events tell that something may have changed; in place of one that is not there, the
        nearest above it, where it may come back. Of installed packages only the folder that holds them all."""
        wanted: dict[str, None] = {}
        for path, known in self._known.items():
            if known.installed:
                part = next(each for each in _SITE if each in path)
                site = path[: path.index(part) + len(part) - 1]
                wanted[site] = None
                self._sites.add(site)
            else:
                wanted[path if _is_folder(known.state) else os.path.dirname(path)] = None
        there: dict[str, None] = {}
        missing: set[str] = set()
        for folder in wanted:
            while not os.path.isdir(folder):
                missing.add(folder)
                folder = os.path.dirname(folder)
            if folder != os.sep:
                there[folder] = None
        self._followed = frozenset((*there, *missing))
        return list(there)

    def _store_state(self) -> tuple[State, object]:
        """Which database it is, and what tells that it was written, as times of files tell it of reading too."""
        try:
            self._rows.refresh()
            return self._rows.place(), self._rows.version() or _state(self._index)
        except StoreFault as fault:
            return None, fault.fault

    def _state(self, path: str) -> State:
        state = _state(path)
        if state is None or state[0] != _FOLDER:
            return state
        try:
            names = os.listdir(path)
        except OSError:
            return None
        names_to_watch = (name for name in names if not _passes(name) and os.path.join(path, name) not in self._written)
        return (*state[:3], frozenset(names_to_watch))


_FOLDER = "folder"
#: The longest tick of a kernel's clock for file times (CONFIG_HZ=100), in seconds.
_TICK = 0.01


def _state(path: str) -> State:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if stat.S_ISDIR(status.st_mode):
        return (_FOLDER, status.st_dev, status.st_ino)
    return fsio.Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _is_folder(state: State) -> bool:
    return state is not None and state[0] == _FOLDER


def _passes(name: str) -> bool:
    return name.startswith(_PASSING[0]) or name.endswith(_PASSING[1]) or name.isdigit()
