"""What a look-up of a path finds, as text: the same text, the same answer for a program that does not read further.

Imports nothing: the shortest way of ``cachec exec`` compares such texts too.
"""

import os
import stat


def found_at(path: str | bytes, *, follow: bool = True) -> bytes:
    """Return what stat(2) tells a program of ``path``, but for times, owner and numbers of files.

    ``-ERRNO`` where the look-up fails. Of a folder its type and mode, then which folder it is: device and number. Of a
    link that is not followed: its text. Else type and mode, count of links, size. follow: whether a link at the end is.
    """
    try:
        status = os.stat(path, follow_symlinks=follow)
        return described(status, os.readlink(os.fsencode(path)) if stat.S_ISLNK(status.st_mode) else b"")
    except OSError as error:
        return b"-%d" % (error.errno or 0)


def described(status: os.stat_result, target: str | bytes) -> bytes:
    """The same of a status that was taken. target: the text of a link."""
    if stat.S_ISDIR(status.st_mode):
        return b"%o %d:%d" % (status.st_mode, status.st_dev, status.st_ino)
    if stat.S_ISLNK(status.st_mode):
        return b"link " + os.fsencode(target)
    return b"%o %d %d" % (status.st_mode, status.st_nlink, status.st_size)


def is_found(path: str | bytes, found: bytes, *, follow: bool) -> bool:
    """Whether ``found_at`` still says the same; ``+`` stands for anything that is there."""
    now = found_at(path, follow=follow)
    return now == found or (found == b"+" and not now.startswith(b"-"))


def attributes_of(path: str | bytes, *, follow: bool = True) -> bytes:
    """Return the extended attributes of ``path``, names and values; ``-ERRNO`` where they can't be read."""
    try:
        names = sorted(os.listxattr(path, follow_symlinks=follow))
        values = [(os.fsencode(name), os.getxattr(path, name, follow_symlinks=follow)) for name in names]
    except OSError as error:
        return b"-%d" % (error.errno or 0)
    return b"".join(b"%d %d %b %b " % (len(name), len(value), name, value) for name, value in values)


def stdin_kind() -> str:
    """What standard input is: ``file``, ``pipe``, ``nothing`` (/dev/null), ``device`` and its number, or ``closed``."""
    try:
        status = os.fstat(0)
    except OSError:
        return "closed"
    if stat.S_ISCHR(status.st_mode):
        return "nothing" if status.st_rdev == os.makedev(1, 3) else f"device {status.st_rdev}"
    return "file" if stat.S_ISREG(status.st_mode) else "pipe"


def umask() -> int:
    """Return the mask of new files, which umask(2) tells by setting another."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
