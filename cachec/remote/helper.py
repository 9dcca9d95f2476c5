"""A background process that sends pending entries to remotes.

It is started by the first offer, holds ``$CACHEC_DIR/remote/helper-<16 hex>.lock`` (which names the remotes, and holds
its process number), and ends once nothing has come for a minute. It is never needed: ``cachec push`` sends the rest.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

from cachec.base import fsio
from cachec.base.hashing import digest_bytes
from cachec.errors import CachecError
from cachec.events import EventLog
from cachec.remote.chain import Remotes
from cachec.store.store import Store

IDLE_SECONDS = 60.0

#: How often the spool is checked, and how often a failed entry is sent again.
_POLL_SECONDS = 0.2
_RETRY_SECONDS = 30.0

#: The descriptor of the lock in the helper.
_LOCK = 3

#: Detached from the caller: no process has to wait for it, and no signal of a terminal reaches it.
_SHELL = 'cd / && "$@" &'


def start(remotes: Remotes) -> bool:
    """Have a helper for these remotes; whether one was started. Raises OSError."""
    store, environ = remotes.store, os.environ
    fsio.make_dir(store.folder / "remote")
    fd = fsio.open_own(_lock_path(remotes), os.O_RDWR)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False  # there is one, and it looks again before it ends
        if not sys.executable:
            return False  # in another program
        package = os.fspath(Path(fsio.__file__).parents[2])
        path = os.pathsep.join(filter(None, (package, environ.get("PYTHONPATH", ""))))
        variables = {**environ, "PYTHONPATH": path, "CACHEC_REMOTE": " ".join(remotes.urls)}
        line = [sys.executable, "-m", __name__, os.fspath(store.folder), store.namespace]
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            places = [(os.POSIX_SPAWN_DUP2, null, number) for number in range(3)]
            actions = [*places, (os.POSIX_SPAWN_DUP2, fd, _LOCK)]
            shell = ["/bin/sh", "-c", _SHELL, "sh", *line]
            os.waitpid(os.posix_spawn("/bin/sh", shell, variables, file_actions=actions, setsid=True), 0)
        finally:
            os.close(null)
        return True
    finally:
        os.close(fd)


def _lock_path(remotes: Remotes) -> str:
    names = digest_bytes(" ".join(remote.address.name for remote in remotes.all).encode())[:16]
    return os.fspath(remotes.store.folder / "remote" / f"helper-{names}.lock")


def run(remotes: Remotes, idle: float = IDLE_SECONDS) -> frozenset[str]:
    """Send pending and new entries until none has arrived for ``idle`` seconds, or the store is gone.

    Returns the names of the offers that this has tried.
    """
    known: frozenset[str] = frozenset()
    changed = tried = time.monotonic()
    while (waiting := remotes.spool.names()) is not None:
        now = time.monotonic()
        if waiting - known:
            changed = now
        elif now - changed > idle:
            break
        if waiting - known or (waiting and now - tried > _RETRY_SECONDS):
            known, tried = waiting, now
            for _ in remotes.drain():
                pass
        time.sleep(_POLL_SECONDS)
    return known


def main(folder: str, namespace: str) -> None:
    """Run the process. It reports errors in the log of the store only."""
    os.closerange(_LOCK + 1, os.sysconf("SC_OPEN_MAX"))  # close descriptors that the caller's libraries left open
    os.ftruncate(_LOCK, 0)
    os.pwrite(_LOCK, b"%d\n" % os.getpid(), 0)
    events = EventLog(folder, log="off")
    store = Store(Path(folder), namespace, on_fault=events.note_fault)
    remotes = Remotes(os.environ["CACHEC_REMOTE"].split(), store, events.note_fault)
    while True:
        known = run(remotes)
        fcntl.flock(_LOCK, fcntl.LOCK_UN)
        if not (remotes.spool.names() or known) - known:
            return
        try:  # an offer came while its process still saw the lock
            fcntl.flock(_LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2])
    except (CachecError, OSError):
        sys.exit(1)
