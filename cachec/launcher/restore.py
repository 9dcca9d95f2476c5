"""Puts a stored output in its place: shared with the store where the file system can (reflink), else copied.

Imports nothing but the small C modules that the direct road has anyway.
"""

import errno
import fcntl
import os
import stat

from cachec.base.file_ownership import open_read, read_regular

#: ioctl of linux/fs.h: the target gets the source's extents (XFS, btrfs, bcachefs).
_FICLONE = 0x40049409

_CHUNK = 1 << 22
_FIRST = 1 << 16


def mode_of(word: str) -> int:
    """The permission bits of a stored mode. Raises ValueError for what is no stored mode."""
    bits = int(word, 8)
    if not 0 <= bits <= 0o7777:
        raise ValueError(f"{word!r} is no mode")
    return bits & 0o777


def same_content(target: str, source: str, size: int) -> bool:
    """Whether ``target`` is a regular file with the content of ``source``, which has ``size`` bytes."""
    try:
        status = os.stat(target)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return False
        with open(target, "rb", 0) as one, open(source, "rb", 0) as other:
            length = _FIRST  # what differs mostly does so at once
            while True:
                piece = one.read(length)
                if piece != other.read(length):
                    return False
                if not piece:
                    return True
                length = _CHUNK
    except (FileNotFoundError, PermissionError):
        return False


def check_place(target: str | bytes, mode: int, *, hardlink: bool = False) -> None:
    """Raise OSError where a stored file may not be what the command leaves: one command writes to the file that is
    there, which keeps its mode and its other names, another makes a new one, and a linker does either. Some write
    through a link; a device or a pipe is no place for a file; what may not be written is refused.

    mode: the permission bits of the stored file. hardlink: a file that is linked to the store may be there.
    """
    try:
        status = os.lstat(target)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EEXIST, "it is no regular file", target)
    if hardlink and status.st_nlink > 1 and not status.st_mode & 0o222:
        return
    if not os.access(target, os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, "it may not be written", target)
    if status.st_nlink > 1:
        raise OSError(
            errno.EMLINK, "it has a second name (a hard link), which the command may write to as well", target
        )
    if status.st_uid != os.geteuid():
        raise OSError(errno.EEXIST, "it is another user's, which the command may keep", target)
    if any(name.startswith("user.") for name in _attributes(target)):
        raise OSError(errno.EEXIST, "it has extended attributes, which the command may keep", target)
    _check_mode(stat.S_IMODE(status.st_mode), mode, target)


def _attributes(target: str | bytes) -> list[str]:
    try:
        return os.listxattr(target)
    except OSError:  # a file system that has none
        return []


def check_folder(target: str, mode: int) -> None:
    """The same of a stored folder, and one that is there. A command may replace a link to one."""
    if os.path.islink(target):
        raise OSError(errno.EEXIST, "it is a link", target)
    if os.path.isdir(target):
        _check_mode(os.stat(target).st_mode & 0o777, mode, target)


def _check_mode(old: int, mode: int, target: str | bytes) -> None:
    if old != mode:
        raise OSError(errno.EEXIST, f"it has mode {old:o}, which the command may keep, or make {mode:o}", target)


def restore_file(source: str, target: str, mode: int, *, hardlink: bool = False, restat: bool = False) -> bool:
    """Make ``target`` the content of ``source``; whether anything was written.

    A file that has the content already is not written again: it gets the time of now, as from a compiler. Else a new
    file replaces it in one step, so nobody sees a part of it. What is there passes ``check_place``. restat: a file that
    has the content already keeps its time stamp. Raises OSError.
    """
    if same_content(target, source, os.stat(source).st_size) and (restat or _is_touched(target)):
        return False
    place = os.path.realpath(target)
    staged = _staging_name(place)
    if hardlink:
        os.link(source, staged)
        if _is_touched(staged):  # the store's file has the time of the compile, which may be before the inputs'
            _take_place(staged, place)
            return True
        os.unlink(staged)
    read = open_read(source, os.O_NOFOLLOW)
    try:
        _write(staged, place, mode, lambda fd: _share(read, fd))
    finally:
        os.close(read)
    return True


def restore_bytes(data: bytes, target: str, mode: int, *, restat: bool = False) -> bool:
    """The same for content in memory."""
    try:
        if read_regular(target, len(data)) == data and (restat or _is_touched(target)):
            return False
    except OSError:
        pass  # it is made, or replaced
    place = os.path.realpath(target)
    _write(_staging_name(place), place, mode, lambda fd: _write_all(fd, data))
    return True


def _is_touched(path: str) -> bool:
    """Set the time stamp of a file to now; False where the file is another user's, which only its owner may do."""
    try:
        os.utime(path)
    except PermissionError:
        return False
    return True


def _staging_name(place: str) -> str:
    folder, _, name = place.rpartition("/")
    return f"{folder}/.{name[:100]}.cachec-{os.getpid()}-{os.urandom(4).hex()}"


def _take_place(staged: str, place: str) -> None:
    try:
        os.rename(staged, place)
    except BaseException:
        os.unlink(staged)
        raise


def _write(staged: str, place: str, mode: int, fill) -> None:  # type: ignore[no-untyped-def]  # typing is slow to import
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fill(fd)
        os.fchmod(fd, mode)
        os.rename(staged, place)
    except BaseException:
        os.unlink(staged)
        raise
    finally:
        os.close(fd)


def _has_cloned(read: int, fd: int) -> bool:
    try:
        fcntl.ioctl(fd, _FICLONE, read)
    except OSError:
        return False  # no reflinks here
    return True


def _share(read: int, fd: int) -> None:
    if _has_cloned(read, fd):
        return
    remaining = os.fstat(read).st_size
    try:
        while remaining:
            done = os.copy_file_range(read, fd, min(remaining, 1 << 30))
            if not done:
                break
            remaining -= done
    except OSError:
        remaining = -1
    if remaining:
        os.lseek(read, 0, os.SEEK_SET)
        os.lseek(fd, 0, os.SEEK_SET)
        while piece := os.read(read, _CHUNK):
            _write_all(fd, piece)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def restore_folder(target: str, mode: int, *, restat: bool = False) -> None:
    """Make a folder, where there is none yet; what is in one that is there stays, and it passes ``check_folder``.
    restat: it keeps its time. Raises OSError."""
    if not os.path.isdir(target):
        os.mkdir(target, 0o700)
        os.chmod(target, mode | os.stat(target).st_mode & stat.S_ISGID)  # which it has from the folder above
    if not restat:
        os.utime(target)


def restore_link(to: str, place: str) -> None:
    """Make ``place`` a link to ``to``; it replaces a link or a file that is there. Raises OSError."""
    if os.path.islink(place) and os.readlink(place) == to:
        return
    staged = _staging_name(os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place)))
    os.symlink(to, staged)
    _take_place(staged, place)
