"""inotify(7), through ctypes: a queue of what happens to watched inodes, by anybody and under any name; and whether
anything was mounted, which no inode tells.

A watch is on an inode, so what is done through hard links, symbolic links and other mounts is seen; that of a folder
tells of its children too, where these are reached through it. Not seen: reads and stores through a map, and what is
done on another machine of a network file system.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

IN_ACCESS, IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE, IN_CLOSE_NOWRITE, IN_OPEN = 0x1, 0x2, 0x4, 0x8, 0x10, 0x20
IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF, IN_Q_OVERFLOW, IN_IGNORED = 0x400, 0x800, 0x4000, 0x8000
#: Of an event: it is about a folder.
IN_ISDIR = 0x40000000
#: Flags of a watch: only of a folder, and of no link.
IN_ONLYDIR, IN_DONT_FOLLOW = 0x1000000, 0x2000000

#: struct inotify_event of linux/inotify.h: wd, mask, cookie, len; then len bytes of name.
_EVENT = struct.Struct("iIII")

_READ = 1 << 16


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


class Inotify:
    """A queue of the kernel's, with watches. A forked child has none of its parent's: it would take its events.

    Raises OSError where the kernel gives none (EMFILE: ``fs.inotify.max_user_instances``).
    """

    _fd = _mounts = -1

    def __init__(self) -> None:
        self._fd = _check_result(_libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), "inotify_init1")
        self._polled = select.poll()
        self._pid = os.getpid()
        _open().add(self)

    @property
    def is_open(self) -> bool:
        """Whether this process hears of anything by it."""
        return self._fd >= 0 and self._pid == os.getpid()

    def watch(self, path: str | os.PathLike[str], mask: int) -> int:
        """Watch what is at a path from now on; the number of the watch, which is one an inode.

        Raises OSError where nothing is there or the kernel gives no watch (ENOSPC: ``fs.inotify.max_user_watches``).
        """
        added = _libc().inotify_add_watch(self._fd, os.fsencode(path), ctypes.c_uint32(mask))
        return _check_result(added, os.fspath(path))

    def unwatch(self, watch: int) -> None:
        """End a watch, if it has not ended by itself."""
        _libc().inotify_rm_watch(self._fd, watch)

    def events(self) -> Iterator[InotifyEvent]:
        """The events that wait; none of a closed one."""
        while self.is_open:
            try:
                data = os.read(self._fd, _READ)
            except BlockingIOError:
                return
            yield from parse_events(data)

    def poll(self) -> tuple[bool, bool]:
        """Whether events wait, and whether anything was mounted or unmounted since the last call (proc(5)).

        At the first call the latter is not known, and False. Raises OSError.
        """
        if self._mounts < 0:
            self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            self._polled.register(self._mounts, select.POLLPRI)
            self._polled.register(self._fd, select.POLLIN)
        ready_fds = self._polled.poll(0)  # by one call where nothing happened
        return any(fd == self._fd for fd, _ in ready_fds), any(fd == self._mounts for fd, _ in ready_fds)

    def close(self) -> None:
        """Give the watches back. May be called twice."""
        descriptors, self._fd, self._mounts = (self._fd, self._mounts), -1, -1
        for fd in descriptors:
            if fd >= 0:
                with suppress(OSError):  # the descriptor is gone all the same (close(2)), and the run has its result
                    os.close(fd)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """A queue that is forgotten is closed. Where the interpreter ends, names of modules are gone, and so is it."""
        if not is_ending():
            self.close()


@lru_cache(maxsize=1)
def _open() -> weakref.WeakSet[Inotify]:
    """The queues of this process. Those that a child inherits are closed in it at once, before their numbers can stand
    for anything else."""
    queues: weakref.WeakSet[Inotify] = weakref.WeakSet()

    def close() -> None:
        for queue in list(queues):
            queue.close()

    os.register_at_fork(after_in_child=close)
    return queues


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check_result(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result
