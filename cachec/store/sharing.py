"""Which group a store is shared with, and which users have agreed to that.

A folder's own mode says that it is shared: its group may write, and new files keep the group (setgid, 2770). All that
is made in it follows. Members of the group decide what a hit is, so each user has to agree once. The store records it:

    shared/<uid>    owned by that user, 0644: this module's mark, the store's path and the group's number, a line each

Nobody but the user and root can make such a file. A member can move it into another store, where path and group differ.
A record of root counts for all users, as root can change their settings too.
"""

from __future__ import annotations

import os
import stat

from cachec.base import foreign, fsio

#: Folder of the records in a store.
FOLDER = "shared"

_MARK = "cachec shared 1"

#: Bytes of a record: more than any path takes.
_MOST = 1 << 14


def agreed_group(folder: str) -> int | None:
    """Return the group that this user, or root, has agreed to share a store with; None for none."""
    for uid in dict.fromkeys((os.geteuid(), 0)):
        try:
            record = foreign.read_regular(_place(folder, uid), _MOST, own=True)
            group = os.stat(folder).st_gid
        except OSError:
            continue  # no record, or one that is not to be believed
        if record == _text(folder, group):
            return group
    return None


def is_recorded(folder: str) -> bool:
    """Return whether any user has agreed to share a store, be it that its folder is not shared any more."""
    try:
        return any(name.isdigit() for name in os.listdir(os.path.join(folder, FOLDER)))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True  # nobody but a group's member makes such a folder


def agree(folder: str) -> bool:
    """Record that this user agrees to share a store with its group; False where it is not shared. Raises OSError."""
    try:
        status = os.stat(folder)
    except FileNotFoundError:
        return False
    if not fsio.is_shared(status):
        return False
    if agreed_group(folder) != status.st_gid:
        fsio.make_dir(os.path.join(folder, FOLDER))
        with fsio.Staging(os.path.join(folder, FOLDER)) as staged:
            staged.write(_text(folder, status.st_gid))
            staged.commit(_place(folder, os.geteuid()), mode=0o644, fsync=False)
    return True


def why_not_of(status: os.stat_result, group: int) -> str:
    """Say why others than this user, root and a group can write what ``stat`` found; empty where they can't."""
    if status.st_gid == group and not status.st_mode & stat.S_IWOTH:
        return ""
    return foreign.why_foreign(status)


def _place(folder: str, uid: int) -> str:
    return os.path.join(folder, FOLDER, str(uid))


def _text(folder: str, group: int) -> bytes:
    return b"%b\n%b\n%d\n" % (_MARK.encode(), os.fsencode(os.path.realpath(folder)), group)
