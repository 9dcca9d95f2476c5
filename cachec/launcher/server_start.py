"""The start of the server: one launcher of a build starts it, and the others wait.

The folder of the sockets is locked (``flock``) by the one that starts it, then by the server until its socket is there.
All of them then ask the server, instead of importing, hashing and opening all that by themselves.
"""

from __future__ import annotations

import fcntl
import os
import time

from cachec import config
from cachec.base import fsio
from cachec.errors import CachecError
from cachec.launcher import client

#: Seconds between two looks whether the lock is free.
_PAUSE = 0.005


def is_there(folder: str, name: str) -> bool:
    """Whether there is a server now, be it started by this process. folder, name: of its socket, as ``client.ask``
    gives them."""
    folder_fd, may_be_there = hold(folder, name)
    if folder_fd < 0:
        return may_be_there
    from cachec.base.msgspec_import import import_msgspec

    import_msgspec()
    from cachec.launcher.server import start

    start(folder_fd, name)
    os.close(folder_fd)
    folder_fd, may_be_there = hold(folder, name)
    if folder_fd >= 0:  # it did not come to be
        os.close(folder_fd)
    return may_be_there


def hold(folder: str, name: str) -> tuple[int, bool]:
    """Wait until no other process starts a server.

    Returns a descriptor of the folder, locked, where this process is to start it, else -1; and whether there may be one
    to ask now. Neither, where the settings have none, or its folder can't be had.
    """
    try:
        settings = config.load()
        if settings.server == "off":
            return -1, False
        if not os.path.lexists(folder):
            if _is_refused(folder, settings):
                return -1, False
            fsio.make_dir(os.path.dirname(folder))
            os.mkdir(folder, 0o700)
        folder_fd = client.open_own(folder)
    except FileExistsError:
        return hold(folder, name)  # another has made it just now
    except (CachecError, OSError):  # whoever goes on tells what is wrong, where it matters
        return -1, False
    try:
        has_waited = _lock_folder(folder_fd)
        if has_waited is False and not _is_there(folder_fd, name):
            if _is_refused(folder, settings):
                return -1, False
            folder_fd, locked = -1, folder_fd
            return locked, False
        return -1, has_waited is not None
    finally:
        if folder_fd >= 0:
            os.close(folder_fd)


def _is_refused(folder: str, settings: config.Settings) -> bool:
    """Return whether the store in which the folder of the sockets lies is refused: nothing is made in it then."""
    from cachec.store.store import Store  # only where no server answers

    return bool(Store(os.path.dirname(folder)).why_refused(settings.shared))


def _lock_folder(folder_fd: int) -> bool | None:
    """Lock the folder: whether another had it before; None where another has it for too long."""
    until = time.monotonic() + client.PATIENCE
    has_waited = False
    while True:
        try:
            fcntl.flock(folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return None
            has_waited = True
            time.sleep(_PAUSE)
        else:
            return has_waited


def _is_there(folder_fd: int, name: str) -> bool:
    """Whether a server has come between the question and the lock. What one that is gone has left counts for none."""
    try:
        connection, _ = client.connect(folder_fd, name)
    except OSError:
        return False
    connection.close()
    return True
