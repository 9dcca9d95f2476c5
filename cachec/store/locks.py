"""One execution a key, among threads and processes: a lock file per key, held with ``flock``.

    locks/ab/<key>      removed when it is released; its lines:
        <pid>                           the process that holds it, in decimal
        runs <time> <near> <stage>      since when it runs what (Unix time), and the key that is nearest
        waits <pid> <time>              another one that waits, since when

The first line is the holder's. The others are for who looks (``running``), may be missing, and decide of nothing: they
are appended without the lock, and leave the file as old as it was, which says since when the lock is held.

``flock`` belongs to an open file description: each acquisition opens its own, so two threads exclude each other, and
the kernel releases it when the last descriptor goes, so a killed holder blocks nobody. A forked child shares the
description and would keep the lock of a dead parent: its copy is closed right after the fork (a child of a C library
that forks without running Python's hooks, and does not exec, is beyond reach; ``release`` unlocks even then).
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec

from cachec.base import file_ownership, fsio
from cachec.base.display_text import clean

#: Seconds between two looks at a lock that somebody else holds: the first pause, and the longest.
POLL_SECONDS = (0.005, 0.2)


#: Names of locks of keys, in their folders; bytes of one that are read.
_SHARD, _KEY = r"[0-9a-f]{2}", r"[0-9a-f]{64}"
_MOST = 1 << 16

#: Characters of a stage's name in a lock.
_MAX_STAGE = 300


#: What a process that a server has forked is called, before the number of the process that asked for it.
SERVES = "cachec:"


class Running(msgspec.Struct, frozen=True):
    """A stage that runs under the lock of a key."""

    key: str
    #: With ``since``, ``near``: as in the file.
    pid: int
    stage: str
    since: float
    near: str
    #: Since when, by process.
    waiting: dict[int, float]


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

    def running(self) -> list[Running]:
        """What runs now, longest first. Raises OSError."""
        found: list[Running] = []
        for shard in fsio.names_in(self.folder, _SHARD):
            for key in fsio.names_in(self.folder / shard, _KEY):
                path = self.folder / shard / key
                if not fsio.is_abandoned(path):
                    found += _running(key, _lines(path))
        return sorted(found, key=lambda each: each.since)

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
        first = next(iter(_lines(self.path)), "")
        return int(first) if first.isdigit() else 0

    def note_run(self, stage: str, near: str) -> None:
        """Say to who looks what runs. near: the key of the entry that is nearest, or this one."""
        self._note(f"runs {time.time():.3f} {near} {clean(stage)[:_MAX_STAGE]}")

    def note_wait(self, waited: float) -> None:
        """Say to who looks that this process waits, and has for so many seconds."""
        self._note(f"waits {os.getpid()} {time.time() - waited:.3f}")

    def _note(self, line: str) -> None:
        with contextlib.suppress(OSError):  # released meanwhile, or no room: nothing rests on it
            flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            with fsio.closing(os.open(self.path, flags)) as fd:
                before = os.fstat(fd)
                os.write(fd, f"{line}\n".encode())
                os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))

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


def _lines(path: Path) -> list[str]:
    """Of a lock file; none where it is gone, or can't be read."""
    try:
        return file_ownership.read_regular(path, _MOST).decode(errors="replace").split("\n")
    except OSError:
        return []


def is_ancestor(pid: int) -> bool:
    """Whether a process waits for this one, as a launcher does that runs a whole build: it will not let go before. For
    a server's child waits who asked the server: it is called so."""
    mine = os.getpid()
    while pid and mine > 1:
        if mine == pid:
            return True
        try:
            with open(f"/proc/{mine}/stat", encoding="utf-8", errors="replace") as file:
                name, _, fields = file.read().partition("(")[2].rpartition(")")
            asks = name.removeprefix(SERVES)
            mine = int(fields.split()[1] if asks == name else asks)
        except (OSError, ValueError, IndexError):
            return False
    return False


def _running(key: str, lines: list[str]) -> Iterator[Running]:
    """What a held lock says; nothing, where that is not (yet) what runs."""
    pid, *notes = lines or [""]
    run = next((each.split(" ", 3) for each in notes if each.startswith("runs ")), [])
    since = _number(run[1]) if len(run) == 4 else None
    if since is None or not pid.isdigit():
        return
    waiting: dict[int, float] = {}
    for each in notes:
        what, _, rest = each.partition(" ")
        other, _, begin = rest.partition(" ")
        moment = _number(begin)
        if what == "waits" and other.isdigit() and moment is not None:
            waiting.setdefault(int(other), moment)
    yield Running(key, int(pid), run[3], since, run[2], waiting)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class _ForkedLocks(Protocol):
    def before_fork(self) -> None: ...

    def after_fork(self, *, child: bool) -> None: ...


#: Whether a child that this context forks only becomes another program.
_forks_to_exec: ContextVar[bool] = ContextVar("cachec_forks_to_exec", default=False)


@contextmanager
def forking_to_exec() -> Iterator[None]:
    """Nobody is told of forks of this context while the body runs: the child becomes another program at once, which
    closes all that it has of ours, as ``posix_spawn`` does. So what is open stays open, and what was read is known.
    """
    token = _forks_to_exec.set(True)
    try:
        yield
    finally:
        _forks_to_exec.reset(token)


def follow_forks(of: _ForkedLocks) -> None:
    """Have ``of`` told of each fork, as long as somebody holds it."""
    _followers().append(weakref.ref(of, _followers().remove))


@cache  # ``os.register_at_fork`` has no way back
def _followers() -> list[weakref.ref[_ForkedLocks]]:
    followers: list[weakref.ref[_ForkedLocks]] = []

    def before() -> None:
        for follower in [] if _forks_to_exec.get() else [*reversed(followers)]:
            if (alive := follower()) is not None:
                alive.before_fork()

    def after(child: bool) -> None:
        for follower in [*followers]:
            if (alive := follower()) is not None:
                alive.after_fork(child=child)

    os.register_at_fork(
        before=before, after_in_parent=lambda: after(child=False), after_in_child=lambda: after(child=True)
    )
    return followers
