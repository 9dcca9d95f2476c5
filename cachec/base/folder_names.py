"""Changes of names in folders, reported by inotify(7) instead of listing each folder.

All is told that listing the folders again would show: a name that comes, goes or becomes another's, a folder that is
moved, removed, or no longer to be read; and that anything was mounted (proc(5)). Who asks sees to it that the uppermost
folder is still the one at its path, and that all are on file systems of which the kernel tells each change
(``mounts.WATCHED_FILESYSTEMS``).
"""

from __future__ import annotations

import os
import threading
from functools import lru_cache

from cachec.base.inotify import (
    IN_ATTRIB,
    IN_CREATE,
    IN_DELETE,
    IN_DELETE_SELF,
    IN_IGNORED,
    IN_MOVE_SELF,
    IN_MOVED_FROM,
    IN_MOVED_TO,
    IN_ONLYDIR,
    Inotify,
)

_MASK = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR

#: Folders that a process follows at most.
_MOST = 1024


class FolderWatcher:
    """Watches folders. Thread-safe; a forked child starts over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._queue: Inotify | None = None
        self._watches: set[int] = set()
        self._token: object | None = None

    def token(self) -> object | None:
        """Return the same object as long as no watched folder changed; None if this is unknown."""
        with self._process_lock():
            if self._queue is None:
                return None
            try:
                is_waiting, is_remounted = self._queue.poll()
                if is_waiting:
                    ended = {event.watch for event in self._queue.events() if event.mask & IN_IGNORED}
                    self._watches -= ended
            except OSError:
                self._end()
                return None
            if is_waiting or is_remounted:
                self._token = object()
            return self._token

    def begin(self) -> object | None:
        """The token as ``token`` gives it, of the folders that are followed from here on too."""
        with self._process_lock():
            if self._queue is None:
                try:
                    self._queue = Inotify()
                    self._queue.poll()  # discard the mounts before
                except OSError:  # no queue or descriptor is left
                    self._end()
                self._token = object()
        return self.token()

    def follow(self, folder: str) -> bool:
        """Watch a folder from now on; return whether it works. Call this before reading its names."""
        with self._process_lock():
            if self._queue is None or len(self._watches) >= _MOST:
                return False
            try:
                self._watches.add(self._queue.watch(folder, _MASK))
            except OSError:  # it is gone, or no watch is left
                return False
            return True

    def _end(self) -> None:
        if self._queue is not None:
            self._queue.close()
        self._queue, self._watches, self._token = None, set(), None

    def _process_lock(self) -> threading.Lock:
        if self._pid != os.getpid():  # a forked child: the lock may have been held by a thread that is not here
            self._lock, self._pid = threading.Lock(), os.getpid()
            self._end()
        return self._lock


@lru_cache(maxsize=1)
def folder_watcher() -> FolderWatcher:
    """The one of this process: the kernel gives a user few queues."""
    return FolderWatcher()
