"""Leases: which artifacts a living process was handed, so that ``gc`` leaves them alone.

    leases/<pid>-<hex>      one an opened cache: 32 bytes a digest (BLAKE3-256, raw), appended

The file is locked with ``flock`` (shared) as long as its cache lives; the kernel drops the lock of who is killed, and a
forked child keeps it with the descriptor that it inherits. An artifact is leased once a process, before it is looked
at: never again on later hits.

**Why nothing is lost.** Whoever leases an artifact holds the lock of its folder (shared) while it writes the lease and
looks whether the artifact is there; ``gc`` holds that lock (exclusive) while it reads the leases again and removes. So
either ``gc`` sees the lease, or the artifact is gone before it is handed out, which is a miss. No clock takes part.

Only ``gc`` removes the file of another process, and only one whose process was dead before ``gc`` read the rows of the
index: what such a process published is in these rows. A process that ends removes its own file, unless ``gc`` is at
work (it holds the lock of ``leases`` itself, exclusive).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cachec.base import fsio
from cachec.model import Fault

#: Bytes of a digest in a lease.
WIDTH = 32

_NAME = r"\d+-[0-9a-f]{16}"

#: Seconds that ``gc`` waits for processes that end to have removed their leases.
_PATIENCE = 60.0


class _Open:
    """The open lease file; fd is -1 where there is none."""

    def __init__(self) -> None:
        self.fd = -1
        self.path = ""


class Leases:
    """What one opened cache holds. Safe among threads and across a fork. Opening it makes nothing."""

    def __init__(self, folder: str | os.PathLike[str], on_fault: Callable[[Fault, str], None] | None = None) -> None:
        """on_fault: told, once, that leases can't be written (no room); artifacts are then handed out without."""
        self.folder = Path(folder)
        self._on_fault = on_fault or (lambda _fault, _detail: None)
        self._taken: set[bytes] = set()
        self._open = _Open()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._is_reported = False
        self._may_end_partial = False  # whether the file may end in a part of a digest
        weakref.finalize(self, _close, self._open)

    def holds(self, digest: str) -> bool:
        """Whether the artifact or tree of that digest is leased."""
        return bytes.fromhex(digest) in self._taken

    def take(self, digests: Iterable[str], *, strict: bool = False) -> None:
        """Lease these artifacts, with the lock of their folder held.

        Where no lease can be written (a full disk, a store that is only read), nothing happens: a hit is worth more
        than its protection. strict: raise StoreFault then, as a publication has to, which ``gc`` must not undo.
        """
        wanted = {bytes.fromhex(digest) for digest in digests}
        if wanted <= self._taken:
            return
        with self._process_lock():
            try:
                self._write(wanted - self._taken)
            except OSError as error:
                fault = fsio.fault(error, f"leasing in {self.folder}")
                if strict:
                    raise fault from error
                if not fsio.is_unwritable(error) and not self._is_reported:
                    self._is_reported = True
                    self._on_fault(fault.fault, fault.detail)
                return
            self._taken |= wanted

    def is_leased_by_others(self, digest: str) -> bool:
        """Whether another opened cache, of any process, has leased it, with its folder locked. Raises OSError."""
        own, wanted = os.path.basename(self._open.path), bytes.fromhex(digest)
        for name in fsio.names_in(self.folder, _NAME, must_list=True):
            with contextlib.suppress(FileNotFoundError):
                if name != own and wanted in _digests(_read_from(os.path.join(self.folder, name), 0)):
                    return True
        return False

    def forget(self, digest: str) -> None:
        """The artifact was found to be gone: the store may have been cleared, and the lease with it."""
        self._taken.discard(bytes.fromhex(digest))

    def release(self) -> None:
        """Give up all leases. Use ``Objects.release``, which forgets what it has handed out, too."""
        with self._process_lock():
            self._taken.clear()
            _close(self._open)

    def _process_lock(self) -> threading.Lock:
        if self._pid != os.getpid():  # a forked child: the lock may have been held by a thread that is not here
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

    def _write(self, new: set[bytes]) -> None:
        try:
            self._append(new)
        except FileNotFoundError:  # the store is being cleared
            self._append(new)

    def _append(self, new: set[bytes]) -> None:
        if self._open.fd >= 0 and not self._may_end_partial and os.fstat(self._open.fd).st_nlink:
            self._may_end_partial = True
            _add(self._open.path, new)
            self._may_end_partial = False
            return
        fresh = self._make_file()
        try:
            _add(fresh.path, new | self._taken)
        except BaseException:
            _close(fresh)
            raise
        old = _Open()
        old.fd, old.path = self._open.fd, self._open.path
        self._open.fd, self._open.path = fresh.fd, fresh.path
        self._may_end_partial = False
        _close(old)  # only now: what it says was never unprotected

    def _make_file(self) -> _Open:
        """A new lease file, locked. ``gc`` may take one that is not yet locked for a dead one's, and remove it."""
        fsio.make_inner_dir(self.folder)
        while True:
            path = os.path.join(self.folder, f"{os.getpid()}-{os.urandom(8).hex()}")
            fd = fsio.open_own(path, os.O_RDONLY | os.O_EXCL)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH)
                if os.fstat(fd).st_nlink:
                    made = _Open()
                    made.fd, made.path = fd, path
                    return made
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)


def _add(path: str, digests: set[bytes]) -> None:
    """Append to a lease. Opened each time: who holds a descriptor that writes keeps a disk from becoming read-only."""
    data = b"".join(sorted(digests))
    with fsio.closing(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)) as fd:
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, "part of a lease did not fit", path)


def _read_from(path: str, start: int) -> bytes:
    """What a lease says from a byte on. Raises OSError, also for what is no regular file."""
    with fsio.closing(fsio.open_read(path)) as fd:
        return os.pread(fd, max(0, os.fstat(fd).st_size - start), start)


def _digests(data: bytes) -> list[bytes]:
    """The whole digests of what a lease says; the last one may be on its way."""
    return [data[at : at + WIDTH] for at in range(0, len(data) - WIDTH + 1, WIDTH)]


def _close(lease: _Open) -> None:
    """Close a lease, and remove its file unless a forked child still holds it, or ``gc`` is at work."""
    fd, lease.fd = lease.fd, -1
    if fd < 0:
        return
    with contextlib.suppress(OSError):
        os.close(fd)
    with contextlib.suppress(OSError), fsio.folder_locked(os.path.dirname(lease.path), exclusive=False, seconds=0):
        fsio.is_abandoned(lease.path, remove=True)


class LeasedArtifacts:
    """What living processes hold, as ``gc`` sees it. Use it in ``collecting``. Safe among threads."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.fspath(folder)
        self.digests: set[bytes] = set()
        self._looking = threading.Lock()
        self._dead: set[str] = set()
        self._read: dict[str, int] = {}  # bytes read of each file; never forgotten while gc is at work

    def __contains__(self, digest: str) -> bool:
        return bytes.fromhex(digest) in self.digests

    def drop_dead(self, *, remove: bool = True) -> int:
        """Leave out the leases of dead processes, and remove them; how many. Only before the index is read."""
        with fsio.faults(f"reading the leases in {self.folder}"):
            dead = [name for name in self._names() if fsio.is_abandoned(os.path.join(self.folder, name), remove=remove)]
        self._dead.update(dead)
        return len(dead)

    def refresh(self) -> None:
        """Read what was leased since the last look. Raises StoreFault."""
        with self._looking, fsio.faults(f"reading the leases in {self.folder}"):
            self._refresh()

    def _refresh(self) -> None:
        for name in self._names():
            path = os.path.join(self.folder, name)
            start = self._read.get(name, 0)
            try:
                found = _digests(_read_from(path, start))
            except FileNotFoundError:
                continue  # given up just now, before this gc began or by its own process's will
            self.digests.update(found)
            self._read[name] = start + len(found) * WIDTH

    def _names(self) -> list[str]:
        return [name for name in fsio.names_in(self.folder, _NAME, must_list=True) if name not in self._dead]


@contextlib.contextmanager
def collecting(folder: str | os.PathLike[str]) -> Iterator[LeasedArtifacts]:
    """Keep leases from being given up unseen while the body runs. Raises StoreFault."""
    with contextlib.ExitStack() as stack:
        with fsio.faults(f"locking {folder}"):
            fsio.make_dir(folder)
            stack.enter_context(fsio.folder_locked(folder, exclusive=True, seconds=_PATIENCE))
        yield LeasedArtifacts(folder)
