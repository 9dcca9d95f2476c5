"""The only raw file I/O of cachec: identities, exact reads, staging and publication.

Nothing here knows what a file means. Every file is opened close-on-exec; every folder made here has mode 0700.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import mmap
import operator
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from time import monotonic  # at once: who calls us may have put a clock of its own there
from types import TracebackType
from typing import Any, NamedTuple

from cachec.base import file_ownership
from cachec.errors import StoreFault

#: A change in the same tick of the clock as the last one need not show in ctime; two seconds cover every local file
#: system (ext3 counts in whole seconds, FAT in two).
SETTLE_SECONDS = 2.0

#: What a folder's mode has where a team shares it.
_SHARED = stat.S_ISGID | stat.S_IWGRP

#: Of renameat2(2).
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1

#: Bytes asked of the kernel at once: large enough to hide the call, small enough to bound memory.
_READ_CHUNK = 1 << 24

#: Bytes that one call of ``posix_fadvise`` starts to read: below the kernel's limit on every block device.
_ADVISED = 1 << 17


class Identity(NamedTuple):
    """What tells one state of one file from another, as far as ``stat`` can."""

    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def changed_ns(self) -> int:
        """When its content or place changed last, in ns of Unix time."""
        return max(self.mtime_ns, self.ctime_ns)


#: What ``stat`` told, as a tuple that equals its ``Identity``. Where hundreds of files are compared, none is made.
identity_fields = operator.attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")


def identity(file: int | str | os.PathLike[str]) -> Identity:
    """The identity of an open descriptor or of what a path leads to (links followed).

    Raises OSError where the file is not there.
    """
    return identity_of(os.stat(file))


def identity_of(s: os.stat_result) -> Identity:
    """The identity in what ``stat`` told."""
    return Identity(*identity_fields(s))


def identity_if_there(path: str | os.PathLike[str]) -> Identity | None:
    """The same, None where nothing is there, or that can't be told."""
    try:
        return identity(path)
    except (OSError, ValueError):
        return None


#: It lies where the launcher's hit path may import it.
open_read = file_ownership.open_read


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """An open descriptor, until the body ends."""
    try:
        yield fd
    finally:
        os.close(fd)


def pread_chunks(fd: int, offset: int, nbytes: int) -> Iterator[bytes]:
    """The bytes ``[offset, offset + nbytes)`` in bounded pieces. Raises EOFError where the file ends before."""
    while nbytes:
        chunk = os.pread(fd, min(nbytes, _READ_CHUNK), offset)
        if not chunk:
            raise EOFError(f"file ends at byte {offset}, {nbytes} bytes early")
        yield chunk
        offset += len(chunk)
        nbytes -= len(chunk)


def pread_exact(fd: int, offset: int, nbytes: int) -> bytes:
    """Exactly ``nbytes`` bytes from ``offset``. Raises EOFError where the file ends before."""
    return b"".join(pread_chunks(fd, offset, nbytes))


def pread_into(fd: int, offset: int, out: memoryview) -> None:
    """Fill ``out`` (writable bytes) from ``offset``. Raises EOFError where the file ends before."""
    done = 0
    while done < len(out):
        got = os.preadv(fd, [out[done : done + _READ_CHUNK]], offset + done)
        if not got:
            raise EOFError(f"file ends at byte {offset + done}, {len(out) - done} bytes early")
        done += got


def will_need(fd: int, offset: int, nbytes: int) -> None:
    """Ask the kernel to start reading a range into the page cache.

    In pieces: it starts no more than its own read-ahead for one call (``force_page_cache_ra`` in mm/readahead.c).
    """
    for start in range(offset, offset + nbytes, _ADVISED):
        os.posix_fadvise(fd, start, min(_ADVISED, offset + nbytes - start), os.POSIX_FADV_WILLNEED)


#: ``MAP_NORESERVE`` (include/uapi/asm-generic/mman-common.h), which ``mmap`` lacks on 3.11: a file that is larger than
#: memory can be mapped writable.
_NO_RESERVE = 0x4000


def map_read(fd: int, offset: int, nbytes: int) -> memoryview:
    """A read-only view of ``nbytes`` bytes of a file. The view keeps its map alive; an empty range maps nothing."""
    if nbytes == 0:
        return memoryview(b"")
    base = offset - offset % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(fd, offset - base + nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=base)
    return memoryview(mapped)[offset - base :]


@functools.cache
def _libc_maps() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``mmap`` and ``munmap`` of the C library. Looked up once, as that takes longer than a map."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc.mmap, libc.munmap


def map_untracked(fd: int, offset: int, nbytes: int) -> memoryview:
    """As ``map_read``, without the descriptor that each ``mmap.mmap`` keeps open before Python 3.13.

    For maps by the thousand: they would leave a process (1,024 descriptors, by default) none to work with.
    """
    if nbytes == 0:
        return memoryview(b"")
    import ctypes
    import weakref

    map_, unmap = _libc_maps()
    base = offset - offset % mmap.ALLOCATIONGRANULARITY
    length = offset - base + nbytes
    address = map_(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, base)
    if address in {None, ctypes.c_void_p(-1).value}:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    mapped = (ctypes.c_char * length).from_address(address)
    # Views keep the array alive, and what is still viewed at exit goes with the process.
    weakref.finalize(mapped, unmap, address, length).atexit = False
    return memoryview(mapped).cast("B").toreadonly()[offset - base :]


def map_private(fd: int, offset: int, nbytes: int) -> memoryview:
    """A writable view of ``nbytes`` (at least 1) bytes of a file, of private pages: writing never reaches the file."""
    base = offset - offset % mmap.ALLOCATIONGRANULARITY
    flags, prot = mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
    mapped = mmap.mmap(fd, offset - base + nbytes, flags=flags, prot=prot, offset=base)
    return memoryview(mapped)[offset - base :]


def is_settled(state: Identity, now: float | None = None) -> bool:
    """Whether a later write to the file would show in its identity: its last change is over two seconds old."""
    now = time.time() if now is None else now
    return now - state.ctime_ns / 1e9 > SETTLE_SECONDS


def keep_writers_out(fd: int) -> bool:
    """Have nobody open the file for writing until ``let_writers_in``, or until it is closed: who tries waits.

    False where somebody has it open for writing or mapped writable already, as a read lease tells (``F_SETLEASE``). A
    store through a shared writable map changes neither mtime nor ctime once its page is dirty; the kernel refuses the
    lease while such a map exists. False too where leases can't be had (another owner's file, a foreign system).
    """
    # The C module below ``signal``, which takes half a millisecond to make enumerations of its numbers.
    import _signal  # type: ignore[import-not-found]  # typeshed leaves it out

    try:
        # Somebody may open the file for writing while the lease is held. The kernel then sends its holder SIGIO, which
        # ends a process that does not handle it; SIGURG is ignored where it is not handled.
        fcntl.fcntl(fd, fcntl.F_SETSIG, _signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return False
    return True


def let_writers_in(fd: int) -> bool:
    """Give back what ``keep_writers_out`` took; whether nobody was let in before.

    The kernel makes nobody wait for longer than ``/proc/sys/fs/lease-break-time`` (45 seconds), be it that this process
    was stopped meanwhile: then it takes the lease away.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return False
    return True


def no_writer(fd: int) -> bool:
    """Whether nobody has the file open for writing or mapped writable now, as ``keep_writers_out`` tells."""
    return keep_writers_out(fd) and let_writers_in(fd)


def open_folder(path: str | os.PathLike[str]) -> int:
    """A descriptor of a folder of cachec's own: never of what a link leads to, which may be anybody's.

    Raises OSError: ENOTDIR for a link, EPERM for a folder that another user owns, unless it is shared on purpose (its
    group may write, and what is made in it is the group's: setgid).
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    status = os.fstat(fd)
    if status.st_uid not in {0, os.geteuid()} and not is_shared(status):
        os.close(fd)
        raise PermissionError(errno.EPERM, f"belongs to user {status.st_uid}", os.fspath(path))
    return fd


def is_shared(folder: os.stat_result) -> bool:
    """Whether a folder was made for a group: what it may write, and what is made there stays the group's."""
    return folder.st_mode & _SHARED == _SHARED


def names_in(folder: str | os.PathLike[str], form: str | re.Pattern[str], *, must_list: bool = False) -> list[str]:
    """The names of a form in a folder of cachec's own, in order; none where there is no such folder.

    For whoever removes files: no name of another form is cachec's, and no folder that ``open_folder`` refuses.
    must_list: the names are those of what is to stay, so for such a folder an OSError is raised: none would be taken
    for all gone. Raises OSError where the system refuses to say.
    """
    try:
        fd = open_folder(folder)
    except FileNotFoundError:
        return []
    except (NotADirectoryError, PermissionError) as error:
        if must_list or error.errno == errno.EACCES:  # which says nothing of whose folder it is
            raise
        return []
    fits = re.compile(form).fullmatch  # here: most processes list no folder, and to compile takes part of a millisecond
    try:
        return sorted(name for name in os.listdir(fd) if fits(name))
    finally:
        os.close(fd)


def modes_below(folder: str | os.PathLike[str]) -> tuple[int, int]:
    """The modes of a folder and of a file that are made in a folder: the user's alone, or the group's too."""
    return (0o2770, 0o660) if is_shared(os.stat(folder)) else (0o700, 0o600)


def open_own(path: str | os.PathLike[str], flags: int) -> int:
    """A descriptor of a file that changes in the store, made where it is not there: with mode 0600, or 0660 in a folder
    that is shared, whatever the umask. No link is followed, and nothing waited for. Raises OSError.
    """
    _, mode = modes_below(os.path.dirname(os.fspath(path)) or ".")
    if mode & stat.S_IWGRP:
        from cachec.base.append_file import make_shared_file  # of a shared store only

        make_shared_file(os.fspath(path), mode, is_new=bool(flags & os.O_EXCL))
        flags &= ~os.O_EXCL
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        if stat.S_IMODE(status.st_mode) != mode and status.st_uid == os.geteuid():
            os.fchmod(fd, mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_dir(path: str | os.PathLike[str]) -> None:
    """Make a folder and its parents, each new one with mode 0700, or 2770 in one that is shared.

    An existing one is left as it is.
    """
    if os.path.isdir(path):
        return
    place = os.fspath(path).rstrip("/") or "/"
    above = os.path.dirname(place) or os.curdir
    if above != place:
        make_dir(above)
    mode, _ = modes_below(above)
    with contextlib.suppress(FileExistsError):
        if mode & stat.S_IWGRP and _make_shared_dir(place, mode):
            return
        os.mkdir(place, mode=0o700)
        os.chmod(place, mode)  # on purpose: mkdir's mode is cut by the umask only downwards, but a default ACL can add


def _make_shared_dir(place: str, mode: int) -> bool:
    """Make a folder that has its mode from the moment that it has its name: other users of a group may be waiting.

    False where the system has no rename that replaces nothing. Raises OSError.
    """
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    staged = f"{place}.new-{os.getpid()}-{os.urandom(8).hex()}"
    os.mkdir(staged, mode=0o700)
    try:
        os.chmod(staged, mode)
        if not rename(_AT_FDCWD, os.fsencode(staged), _AT_FDCWD, os.fsencode(place), _RENAME_NOREPLACE):
            return True
        number = ctypes.get_errno()
    except BaseException:
        os.rmdir(staged)
        raise
    os.rmdir(staged)
    if number == errno.EINVAL:  # not on this file system
        return False
    raise OSError(number, os.strerror(number), place)


def make_inner_dir(path: str | os.PathLike[str]) -> None:
    """The same within a folder of the store. Raises OSError, ELOOP for a link: what is written would lie elsewhere."""
    if os.path.islink(path):
        raise OSError(errno.ELOOP, "a link in the place of a folder", os.fspath(path))
    make_dir(path)


def fsync_dir(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable."""
    with closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        os.fsync(fd)


class Staging:
    """A temporary file that becomes an immutable one by an explicit ``commit``; leaving without it removes the file."""

    def __init__(self, folder: str | os.PathLike[str], prefix: str = "stage-") -> None:
        self.path = os.path.join(folder, f"{prefix}{os.getpid()}-{os.urandom(8).hex()}")
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    @classmethod
    def adopt(cls, path: str, fd: int) -> Staging:
        """The temporary file of a process that was killed, open as ``fd``, which is this object's from now on."""
        staging = cls.__new__(cls)
        staging.path, staging.fd = path, fd
        return staging

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data`` in full. Raises OSError (ENOSPC, EDQUOT, EFBIG, ...) where it does not fit."""
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(self.fd, view) :]

    def commit(self, target: str | os.PathLike[str], *, mode: int, fsync: bool) -> None:
        """Give the file its mode and its final name. A reader sees all of it or nothing."""
        os.fchmod(self.fd, mode)
        if fsync:
            os.fsync(self.fd)
        os.rename(self.path, target)
        if fsync:
            fsync_dir(os.path.dirname(os.fspath(target)))
        self.path = ""
        self._close()

    def replace(self, target: str | os.PathLike[str], *, fsync: bool) -> None:
        """``commit`` for a file of the user's: with the mode of the file that it replaces, else that of a new one."""
        self.commit(target, mode=user_file_mode(target), fsync=fsync)

    def release(self) -> str:
        """The path of the file, which is the caller's to remove from now on; it is closed."""
        path, self.path = self.path, ""
        self._close()
        return path

    def discard(self) -> None:
        """Remove the file if it was not committed. May be called twice."""
        if self.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            self.path = ""
        self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


def user_file_mode(target: str | os.PathLike[str]) -> int:
    """The permissions of a regular file that is at ``target``; without one, those that the umask gives a new file.

    The umask is read from proc(5), as ``os.umask`` would change it for other threads. Without proc: 0600.
    """
    with contextlib.suppress(FileNotFoundError):
        state = os.lstat(target)
        if stat.S_ISREG(state.st_mode):
            return state.st_mode & 0o777
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as lines:
        for line in lines:
            if line.startswith(b"Umask:"):
                return 0o666 & ~int(line.split()[1], 8)
    return 0o600


def is_full(error: OSError) -> bool:
    """Whether an error means that there is no room: disk, quota, or file-size limit."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def is_unwritable(error: OSError) -> bool:
    """Whether an error means that this place may not be written."""
    return error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}


def is_exhausted(error: OSError) -> bool:
    """Whether it says nothing of a file, but that no descriptor or memory is free."""
    return error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


@contextlib.contextmanager
def folder_locked(folder: str | os.PathLike[str], *, exclusive: bool, seconds: float = 60.0) -> Iterator[None]:
    """Hold ``flock`` on a folder itself: no file is left behind, and a read-only one can be locked too.

    Raises FileNotFoundError where there is none, BlockingIOError where somebody else keeps it for ``seconds``.
    """
    how = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    with closing(open_folder(folder)) as fd:
        end = monotonic() + seconds
        while True:
            try:
                fcntl.flock(fd, how | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() >= end:
                    raise
                time.sleep(0.002)
        try:
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing would not, where a child forked meanwhile holds a copy


def is_abandoned(path: str | os.PathLike[str], *, remove: bool = False) -> bool:
    """Whether nobody has a file locked, or it is gone; it is then removed, if asked. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if remove:
            os.unlink(path)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def fault(error: OSError, what: str) -> StoreFault:
    """The StoreFault that an error on a file of the store stands for; ``what`` says what was being done."""
    from cachec.model import Fault  # the help of the command line has no use for records

    if is_full(error):
        kind = Fault.STORE_FULL
    elif is_unwritable(error):
        kind = Fault.STORE_UNWRITABLE
    elif error.errno in {errno.ENOENT, errno.ENOTDIR}:
        kind = Fault.STORE_MISSING
    else:
        kind = Fault.IO_ERROR
    return StoreFault(kind, f"{what}: {error}")


class faults:  # noqa: N801 - used as a function; a generator's context manager takes four times as long
    """Turn every OSError of the body into the StoreFault that it stands for."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if isinstance(error, OSError):
            raise fault(error, self._what) from error
