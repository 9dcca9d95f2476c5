"""What a look-up of a path finds, as text: the same text, the same answer for a program that does not read further.

Imports next to nothing: the shortest way of ``cachec exec`` compares such texts too.
"""

import os
import stat
import sys


def found_at(path: str | bytes, *, follow: bool = True) -> bytes:
    """Return what stat(2) tells a program of ``path``, but for times and numbers of files.

    ``-ERRNO`` where the look-up fails. Of a folder its type and mode, then which folder it is: device, number, real
    path. Of a link that is not followed: its text. Else type and mode, count of links, size. Last the owner
    (``owner_words``). follow: whether a link at the end is.
    """
    try:
        status = os.stat(path, follow_symlinks=follow)
        if stat.S_ISLNK(status.st_mode):
            return describe_status(status, os.readlink(os.fsencode(path)))
        return describe_status(status, real_folder(path) if stat.S_ISDIR(status.st_mode) else "")
    except OSError as error:
        return b"-%d" % (error.errno or 0)


def describe_status(status: os.stat_result, target: str | bytes) -> bytes:
    """The same of a status that was taken. target: the text of a link, the real path of a folder."""
    state = status.st_mode, status.st_nlink, status.st_size, status.st_dev, status.st_ino
    return described_state(*state, owner_words(status.st_uid, status.st_gid), target)


def described_state(mode: int, nlink: int, size: int, dev: int, ino: int, owner: bytes, target: str | bytes) -> bytes:
    """The same of what a status holds. owner: ``owner_words``."""
    if stat.S_ISDIR(mode):
        return b"%o %d:%d%b %b" % (mode, dev, ino, owner, os.fsencode(target))
    if stat.S_ISLNK(mode):
        return b"link%b %b" % (owner, os.fsencode(target))
    return b"%o %d %d%b" % (mode, nlink, size, owner)


def owner_words(uid: int, gid: int) -> bytes:
    """Return the owner of a file as it counts: nothing for root and for who runs this process. Who is root in a
    container, and another user outside of it, has the same results."""
    is_usual = (not uid or uid == os.geteuid()) and (not gid or gid == os.getegid())
    return b"" if is_usual else b" %d/%d" % (uid, gid)


def real_folder(path: str | bytes) -> bytes:
    """Return the real path of a folder, as the kernel has it. Raises OSError."""
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return os.readlink(b"/proc/self/fd/%d" % fd)
    finally:
        os.close(fd)


def is_found(path: str | bytes, found: bytes, *, follow: bool) -> bool:
    """Whether ``found_at`` still returns the same; ``+`` means anything that exists."""
    now = found_at(path, follow=follow)
    return now == found or (found == b"+" and not now.startswith(b"-"))


def names_in(folder: str) -> "list[str]":
    """Return what getdents(2) tells of a folder: its names, each with a slash and its type where it is no file."""
    with os.scandir(folder) as entries:
        return [entry.name + _mark(entry) for entry in entries]


def mark_of(mode: int) -> str:
    """Return the suffix of a name in ``names_in``, by its mode."""
    return {stat.S_IFREG: "", stat.S_IFDIR: "/", stat.S_IFLNK: "/@"}.get(stat.S_IFMT(mode), f"/{stat.S_IFMT(mode):o}")


def _mark(entry: "os.DirEntry[str]") -> str:
    if entry.is_file(follow_symlinks=False):
        return ""
    if entry.is_symlink() or entry.is_dir(follow_symlinks=False):
        return "/@" if entry.is_symlink() else "/"
    try:
        return mark_of(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return ""  # it has just gone


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
    if sys.stdin is None:
        return "closed"  # when this process began; something else is there now
    if stat.S_ISCHR(status.st_mode):
        return "nothing" if status.st_rdev == os.makedev(1, 3) else f"device {status.st_rdev}"
    return "file" if stat.S_ISREG(status.st_mode) else "pipe"


def umask() -> int:
    """Return the mask of new files, which umask(2) tells by setting another."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
