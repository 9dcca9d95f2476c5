"""One execution a key, among threads and processes: a lock file per key, held with ``flock``.

    locks/ab/<key>      holds the process id of the holder, in decimal; removed when it is released

``flock`` belongs to an open file description: each acquisition opens its own, so two threads exclude each other, and
the kernel releases it when the last descriptor goes, so a killed holder blocks nobody. A forked child shares the
description and would keep the lock of a dead parent: its copy is closed right after the fork (a child of a C library
that forks without running Python's hooks, and does not exec, is beyond reach; ``release`` unlocks even then).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cachec.base import foreign, fsio

#: Seconds between two looks at a lock that somebody else holds: the first pause, and the longest.
POLL_SECONDS = (0.005, 0.2)


class Locks:
    """The locks in a folder, and those of them that this process holds."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        # Held from before a descriptor is opened until it is registered, and across a fork.
        self.mutex = threading.RLock()
        self.held: set[KeyLock] = set()
        self._forking = False
        follow_forks(self)

    def of(self, key: str) -> KeyLock:
        """The lock of one key, not yet taken."""
        return KeyLock(self, key)

    def before_fork(self) -> None:
        """Wait until no descriptor is between being opened and being registered."""
        self.mutex.acquire()
        self._forking = True

    def after_fork(self, *, child: bool) -> None:
        """In the child, close the inherited descriptors: unlocking them would unlock the parent's."""
        if not self._forking:
            return  # made by another thread while the fork was on its way
        self._forking = False
        if child:
            for lock in self.held:
                lock.abandon()
            self.held.clear()
        self.mutex.release()


class KeyLock:
    """The lock of one key. One object is one acquisition at a time; take another object for another thread."""

    def __init__(self, locks: Locks, key: str) -> None:
        if not key or "/" in key or key.startswith("."):
            raise ValueError(f"{key!r} can't name a lock file")
        self.key = key
        self.path = locks.folder / key[:2] / key
        self._locks = locks
        self._fd = -1

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd >= 0

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it. Raises StoreFault where there can be no lock file."""
        if self._fd >= 0:
            raise RuntimeError(f"this object holds the lock of {self.key} already")
        with self._locks.mutex, fsio.faults(f"locking {self.path}"):
            while True:
                fd = self._open()
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if not self._is_current(fd):  # its holder removed it between our open and our lock
                        os.close(fd)
                        continue
                    if os.fstat(fd).st_size:  # left by a killed holder
                        os.ftruncate(fd, 0)
                    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                except BlockingIOError:
                    os.close(fd)
                    return False
                except BaseException:
                    os.close(fd)
                    raise
                self._fd = fd
                self._locks.held.add(self)
                return True

    def acquire(
        self,
        timeout: float | None,
        on_wait: Callable[[int, float], None] | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> bool:
        """Take the lock, waiting up to ``timeout`` seconds (None: for ever); whether it was had.

        on_wait: called with the holder's process id (0 where unknown) and the seconds waited, at the first wait and
        then each time that the wait has doubled since, from 1 s on.
        """
        started, pause, tell_at = clock(), POLL_SECONDS[0], 0.0
        while not self.try_acquire():
            waited = clock() - started
            if timeout is not None and waited >= timeout:
                return False
            if on_wait is not None and waited >= tell_at:
                on_wait(self.holder(), waited)
                tell_at = max(1.0, 2 * waited)
            sleep(pause if timeout is None else min(pause, timeout - waited))
            pause = min(2 * pause, POLL_SECONDS[1])
        return True

    def holder(self) -> int:
        """The process id that the lock file names, 0 where it names none."""
        try:
            text = foreign.read_regular(self.path, 32).strip()
        except OSError:
            return 0  # released meanwhile, or never readable: this is only for a message
        return int(text) if text.isdigit() else 0

    def release(self) -> None:
        """Let go, and remove the lock file. Nothing happens where the lock is not held (in a forked child, say)."""
        with self._locks.mutex:
            if self._fd < 0:
                return
            fd, self._fd = self._fd, -1
            self._locks.held.discard(self)
            try:
                # Removed while held, and only if it is still ours: whoever opened it meanwhile finds, once it has the
                # lock, that the path leads elsewhere, and opens the new file.
                with contextlib.suppress(OSError):
                    if self._is_current(fd):
                        os.unlink(self.path)
                with contextlib.suppress(OSError):  # a call has its result: what is held by a dead process frees itself
                    fcntl.flock(fd, fcntl.LOCK_UN)  # closing alone would not, where a child holds a copy
            finally:
                with contextlib.suppress(OSError):  # the descriptor is gone all the same (close(2))
                    os.close(fd)

    def abandon(self) -> None:
        """Close the descriptor without unlocking or removing anything."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # the descriptor is gone all the same (close(2))
                os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        fsio.make_inner_dir(self.path.parent)
        return fsio.open_own(self.path, os.O_RDWR)

    def _is_current(self, fd: int) -> bool:
        mine = os.fstat(fd)
        try:
            there = os.lstat(self.path)
        except FileNotFoundError:
            return False
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


class _Forked(Protocol):
    def before_fork(self) -> None: ...

    def after_fork(self, *, child: bool) -> None: ...


def follow_forks(of: _Forked) -> None:
    """Have ``of`` told of each fork, as long as somebody holds it: ``os.register_at_fork`` has no way back."""
    lock = weakref.ref(of)

    def before() -> None:
        alive = lock()
        if alive is not None:
            alive.before_fork()

    def after(child: bool) -> None:
        alive = lock()
        if alive is not None:
            alive.after_fork(child=child)

    os.register_at_fork(
        before=before, after_in_parent=lambda: after(child=False), after_in_child=lambda: after(child=True)
    )
