"""Files that another user may have written: their owners, and bounded reads that do not block.

Imports only what Python has loaded at its start: the launcher's hit path uses it.
"""

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

#: Bytes that are read in seconds, be they holes.
_SMALL_HOLES = 1 << 34


def open_read(path: str | bytes | os.PathLike[str], flags: int = 0) -> int:
    """A read-only descriptor of a regular file, which no child process inherits; ``flags`` are set beside.

    Opened without blocking: a FIFO would wait for its writer for ever. Raises OSError, EINVAL for what is no regular
    file.
    """
    flags |= os.O_RDONLY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | os.O_NONBLOCK)
    except BlockingIOError:  # another process holds a write lease, and gives it up while we wait (fcntl(2))
        fd = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return fd


def read_regular(path: str | bytes | os.PathLike[str], limit: int, *, own: bool = False) -> bytes:
    """All of a regular file of at most ``limit`` bytes, opened as above.

    own: only one that nobody but this user and root can have written. Raises OSError: EINVAL for what is no regular
    file, EFBIG for a larger one, EPERM for one of others.
    """
    fd = open_read(path)
    try:
        status = os.fstat(fd)
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"{status.st_size} bytes, where {limit} are the most", os.fspath(path))
        if own and why_foreign(status):
            raise OSError(errno.EPERM, why_foreign(status), os.fspath(path))
        pieces = []
        remaining = limit + 1  # one more than may be there: it may grow while it is read
        while remaining and (piece := os.read(fd, min(remaining, 1 << 20))):
            pieces.append(piece)
            remaining -= len(piece)
        if not remaining:
            raise OSError(errno.EFBIG, f"more than {limit} bytes", os.fspath(path))
        return b"".join(pieces)
    finally:
        os.close(fd)


def is_hollow(path: str) -> bool:
    """Whether a file is far larger than its data on the disk, so that reading it would take hours: holes, kcore."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return status.st_size > max(_SMALL_HOLES, status.st_blocks * 512 * 64)


def why_foreign(status: os.stat_result, owners: "Container[int]" = (), group: int = -1) -> str:
    """Why what ``stat`` found can be written by others than this user and root; empty where it can't.

    owners: users who may own it too. group: one that may write it.
    """
    if status.st_uid not in (0, os.geteuid()) and status.st_uid not in owners:
        return f"belongs to user {status.st_uid}"
    if stat.S_ISLNK(status.st_mode):
        return ""  # a link has no permissions of its own
    if status.st_mode & stat.S_IWOTH:
        return f"is writable for everybody (mode {stat.S_IMODE(status.st_mode):04o})"
    if status.st_mode & stat.S_IWGRP and status.st_gid != group and not _is_private(status.st_gid):
        return f"is writable for the group {status.st_gid} (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def why_distrusted(path: str, owners: "Container[int]" = (), group: int = -1) -> str:
    """Why others could have put, or could replace, what a path leads to: ``<place> belongs to user 1001``.

    Empty where only this user and root can. Looks at the file, at what a link leads to, and at each folder above; in a
    folder with the sticky bit, such as ``/tmp``, nobody can replace what is not his own. What is not there yet would be
    made in the folders above. owners, group: see ``why_foreign``. Raises OSError.
    """
    given = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    for place in dict.fromkeys((given, os.path.realpath(path))):
        here, is_above = place, False
        while True:
            try:
                status = os.lstat(here)
            except FileNotFoundError:
                why = ""  # it is to be made
            else:
                why = why_foreign(status, owners, group)
                if why and not (is_above and _keeps(status, owners)):
                    return f"{here} {why}"
            if here == os.path.dirname(here):
                break
            here, is_above = os.path.dirname(here), True
    return ""


def is_within(path: str, folder: str) -> bool:
    """Whether a path, with every link followed, is a folder or is below it."""
    real, top = os.path.realpath(path), os.path.realpath(folder)
    return real == top or real.startswith(top.rstrip(os.sep) + os.sep)


def _keeps(folder: os.stat_result, owners: "Container[int]") -> bool:
    """Whether a folder that others can write keeps them from replacing what is not their own: sticky, and no foreign
    owner, who could. Whose the things in it are is looked at by itself."""
    return bool(folder.st_mode & stat.S_ISVTX) and (folder.st_uid in (0, os.geteuid()) or folder.st_uid in owners)


def _is_private(gid: int) -> bool:
    """Whether a group has this user as its only member, as most distributions make one for each; or is root's."""
    if gid == 0:
        return True
    import grp  # only for a file that its group can write
    import pwd

    try:
        name, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}
