"""Was a file opened, by anybody and under any name? inotify(7) on the file's inode, through ctypes.

A watch is on the inode, so opens through hard links and symbolic links are seen; a watch on a path's folder (as
watchdog sets it) misses them. Not seen: reads through a map or descriptor that existed before the watch was armed, and
opens on another machine of a network file system.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

IN_ACCESS, IN_MODIFY, IN_ATTRIB, IN_OPEN = 0x1, 0x2, 0x4, 0x20
IN_MOVED_TO, IN_CREATE = 0x80, 0x100
IN_DELETE_SELF, IN_MOVE_SELF, IN_Q_OVERFLOW, IN_IGNORED = 0x400, 0x800, 0x4000, 0x8000

#: Opened, read or written; or replaced by a rename (which ends or unlinks the inode), so that the path means another.
TOUCHED = IN_OPEN | IN_ACCESS | IN_MODIFY | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF

#: struct inotify_event of linux/inotify.h: wd, mask, cookie, len; then len bytes of name.
_EVENT = struct.Struct("iIII")

_READ = 1 << 16


#: In a folder: written, or come to be.
WRITTEN = IN_MODIFY | IN_MOVED_TO | IN_CREATE


class InotifyEvent(NamedTuple):
    """One event: the watch (-1 for an overflow), the bits that happened, and in a watched folder the name there."""

    watch: int
    mask: int
    name: bytes = b""


def parse_events(data: bytes) -> Iterator[InotifyEvent]:
    """The events in one read of an inotify descriptor. Raises ValueError where the last one is cut."""
    at = 0
    while at < len(data):
        if at + _EVENT.size > len(data):
            raise ValueError(f"inotify event cut at byte {len(data)}, {_EVENT.size} bytes expected from {at}")
        watch, mask, _, length = _EVENT.unpack_from(data, at)
        name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
        at += _EVENT.size + length
        if at > len(data):
            raise ValueError(f"inotify event cut at byte {len(data)}, name ends at {at}")
        yield InotifyEvent(watch, mask, name)


class OpenWatch:
    """Watches files from construction on. Use as a context manager.

    Raises OSError where a file is not there or the kernel gives no watch (ENOSPC: ``fs.inotify.max_user_watches``).
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self._fd = _checked(_libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), "inotify_init1")
        self._paths: dict[int, list[str]] = {}  # paths of one inode share a watch
        try:
            for path in [os.fspath(path) for path in paths]:
                watch = _libc().inotify_add_watch(self._fd, os.fsencode(path), ctypes.c_uint32(TOUCHED))
                self._paths.setdefault(_checked(watch, path), []).append(path)
        except OSError:
            self.close()
            raise

    def touched(self) -> frozenset[str]:
        """The files that something happened to since the last call; all of them where the queue ran over."""
        return frozenset(self.affected(_pending(self._fd)))

    def affected(self, events: Iterable[InotifyEvent]) -> set[str]:
        """The files that these events are about."""
        named: set[str] = set()
        for event in events:
            if event.mask & IN_Q_OVERFLOW:
                named.update(path for paths in self._paths.values() for path in paths)
            elif event.mask & (TOUCHED | IN_IGNORED):
                named.update(self._paths.get(event.watch, ()))
        return named

    def close(self) -> None:
        """Give the watches back. May be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _let_go(fd)

    def __enter__(self) -> OpenWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FolderWatch:
    """Watches what is opened and written directly in folders, from construction on, by whomever.

    A folder that can't be watched (gone, no watch left) is passed over: what native code opens there goes unseen.
    ``overflowed``: the kernel had more to tell than its queue holds (``fs.inotify.max_queued_events``).
    """

    def __init__(self, folders: Iterable[str]) -> None:
        self._folders: dict[int, str] = {}
        self._fd = _instance()
        self._pid = os.getpid()
        self._opened: set[str] = set()
        self._written: set[str] = set()
        self.overflowed = False
        for folder in folders if self._fd >= 0 else ():
            watch = _libc().inotify_add_watch(self._fd, os.fsencode(folder), ctypes.c_uint32(IN_OPEN | WRITTEN))
            if watch >= 0:
                self._folders[watch] = folder

    def drained(self) -> tuple[frozenset[str], frozenset[str]]:
        """The files that were opened, and those that were written or made, so far; absolute paths."""
        for event in _pending(self._fd):
            self.overflowed = self.overflowed or bool(event.mask & IN_Q_OVERFLOW)
            folder = self._folders.get(event.watch)
            if folder is not None and event.name:
                path = os.path.join(folder, os.fsdecode(event.name))
                (self._written if event.mask & WRITTEN else self._opened).add(path)
        return frozenset(self._opened), frozenset(self._written)

    def close(self) -> None:
        """Give the watches back. May be called twice."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if not _idle() and self._pid == os.getpid():
            for watch in self._folders:
                _libc().inotify_rm_watch(fd, watch)
            with suppress(OSError):
                for _ in _pending(fd):  # of what comes later no number of a watch is told twice
                    pass
                _idle().append((self._pid, fd))
                return
        _let_go(fd)


@lru_cache(maxsize=1)
def _idle() -> list[tuple[int, int]]:
    """At most one inotify descriptor (process, number) without watches, kept for the next run: to close one waits some
    10 ms for all processors (``synchronize_srcu`` in fs/notify/mark.c)."""
    return []


def _instance() -> int:
    """An inotify descriptor; -1 where the kernel gives none."""
    while True:
        try:
            pid, fd = _idle().pop()
        except IndexError:
            return int(_libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        if pid == os.getpid():
            return fd
        _let_go(fd)  # a forked child would read from the queue of its parent


def _let_go(fd: int) -> None:
    with suppress(OSError):  # the descriptor is gone all the same (close(2)), and the run has its result
        os.close(fd)


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _pending(fd: int) -> Iterator[InotifyEvent]:
    """The events that wait in a queue; none of a closed one."""
    while fd >= 0:
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return
        yield from parse_events(data)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result
