"""Which group a store is shared with, and which users have agreed to that.

A folder's own mode says that it is shared: its group may write, and new files keep the group (setgid, 2770). All that
is made in it follows. Members of the group decide what a hit is, so each user has to agree once. The store records it:

    shared/<uid>    owned by that user, 0644: this module's mark, the inode number of the store's folder and the group's
                    number, a line each

Nobody but the user and root can make such a file. In another folder, or a copy, it says nothing: the number differs.
The same folder at another path (a bind mount, a rename) is the same store. A record of root counts for all users, as
root can change their settings too.

An agreement trusts the group, and nobody else. So the store is refused where others can replace it: where everybody,
another group or a user outside of the group can write a folder above (``why_not_groups``).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from cachec.base import file_ownership, fsio

#: Folder of the records in a store.
FOLDER = "shared"

_MARK = "cachec shared 2"

#: Bytes of a record: more than one has.
_MOST = 1 << 10


def agreed_group(folder: str) -> int | None:
    """Return the group that this user, or root, has agreed to share a store with; None for none."""
    return next(
        (status.st_gid for uid in dict.fromkeys((os.geteuid(), 0)) if (status := _stat_agreed(folder, uid))), None
    )


def is_recorded(folder: str) -> bool:
    """Return whether the records say that a store is shared, though its group may not write into its folder now.

    A copy has another number, and a store that its owner closed has another group, no setgid, or lets no member in.
    """
    wanted = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP
    try:
        if os.stat(folder).st_mode & wanted != wanted:
            return False
        names = os.listdir(os.path.join(folder, FOLDER))
    except OSError:
        return False  # no store, or no records
    return any(_stat_agreed(folder, int(name)) for name in names if name.isascii() and name.isdigit())


def agree(folder: str) -> bool:
    """Record that this user agrees to share a store with its group; False where it is not shared. Raises OSError."""
    try:
        status = os.stat(folder)
    except FileNotFoundError:
        return False
    if not fsio.is_shared(status):
        return False
    if agreed_group(folder) != status.st_gid:
        fsio.make_inner_dir(os.path.join(folder, FOLDER))
        with fsio.Staging(os.path.join(folder, FOLDER)) as staged:
            staged.write(_text(status))
            staged.commit(_place(folder, os.geteuid()), mode=0o644, fsync=False)
    return True


def why_not_groups(folder: str, parts: Mapping[str, os.stat_result], group: int) -> str:
    """Say why others than this user, root and a group decide what a store holds; empty where they don't.

    parts: folders in the store, by path. The store's owner counts for a member. Raises OSError.
    """
    if why := file_ownership.why_distrusted(folder, _Members(group, os.stat(folder).st_uid), group):
        return why
    for path, status in parts.items():
        if (status.st_gid != group or status.st_mode & stat.S_IWOTH) and (why := file_ownership.why_foreign(status)):
            return f"{path} {why}"
    return ""


class _Members:
    """The users of a group, and one more."""

    def __init__(self, group: int, more: int) -> None:
        self._group = group
        self._more = more

    def __contains__(self, uid: object) -> bool:
        if uid == self._more or not isinstance(uid, int):
            return uid == self._more
        import grp
        import pwd

        try:
            account = pwd.getpwuid(uid)
            return account.pw_gid == self._group or account.pw_name in grp.getgrgid(self._group).gr_mem
        except KeyError:
            return False  # no account, or no group, of that number


def _stat_agreed(folder: str, uid: int) -> os.stat_result | None:
    """Return what ``stat`` finds of a store that a user has agreed to share; None where the user has not."""
    try:
        if not stat.S_ISDIR(os.lstat(os.path.join(folder, FOLDER)).st_mode):
            return None
        status = os.stat(folder)
        with fsio.closing(file_ownership.open_read(_place(folder, uid), os.O_NOFOLLOW)) as fd:
            found, record = os.fstat(fd), os.read(fd, _MOST)
    except OSError:
        return None  # no record, or no regular file
    is_own = found.st_uid in {uid, 0} and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status if is_own and record == _text(status) else None


def _place(folder: str, uid: int) -> str:
    return os.path.join(folder, FOLDER, str(uid))


def _text(store: os.stat_result) -> bytes:
    return b"%b\n%d\n%d\n" % (_MARK.encode(), store.st_ino, store.st_gid)
