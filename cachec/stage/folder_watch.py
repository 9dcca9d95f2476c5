"""Which files in a folder were opened and written, by any process: inotify(7).

Not seen: reads through a map or descriptor that existed before the watch was armed, and opens on another machine of a
network file system.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import NamedTuple

from cachec.base.inotify import (
    IN_CLOSE_NOWRITE,
    IN_CLOSE_WRITE,
    IN_CREATE,
    IN_DELETE,
    IN_ISDIR,
    IN_MODIFY,
    IN_MOVED_FROM,
    IN_MOVED_TO,
    IN_OPEN,
    IN_Q_OVERFLOW,
    Inotify,
)

#: Of a name in a folder: it has another content from then on, or none.
_CHANGED = IN_MODIFY | IN_MOVED_TO | IN_MOVED_FROM | IN_CREATE | IN_DELETE
#: What the kernel calls a file that has no name (O_TMPFILE; d_tmpfile in fs/dcache.c).
_NAMELESS = re.compile(rb"#\d+")
_NAMES = IN_OPEN | IN_CLOSE_WRITE | IN_CLOSE_NOWRITE | _CHANGED


class Opens(NamedTuple):
    """Files in watched folders, as absolute paths, that existed before the watch began.

    What came to be during the watch is in neither set: no event tells who made it, and who reads a file that did not
    exist when he began mostly made it.
    """

    #: Files that may have been opened to read, and were not written to since.
    read: frozenset[str]
    #: Files that were written to, replaced or removed after that: what was read is not what is there.
    inconsistent: frozenset[str]
    #: Files to which something was done before they were opened.
    begun: frozenset[str]


class _Name:
    """What happened to one name in a folder, event by event. is_begun: it was changed first."""

    __slots__ = (
        "_closed",
        "_is_changed",
        "_is_new",
        "_is_read",
        "_is_reopened",
        "_opens",
        "is_begun",
        "is_inconsistent",
    )

    def __init__(self, first: int, is_new: bool) -> None:
        self._is_new = is_new
        self.is_begun = bool(first & _CHANGED)
        self._opens = self._closed = 0
        self._is_read = self._is_changed = self._is_reopened = self.is_inconsistent = False

    def add(self, mask: int) -> None:
        if mask & _CHANGED:
            writers = 1 if mask & IN_MODIFY else 0
            self._tear(self._is_read or self._opens - self._closed > writers)
            self._is_changed, self._is_reopened = True, False
        if mask & IN_CLOSE_NOWRITE:
            # Two openings in a row are told as one: whoever closes it now had it open before it changed.
            self._tear(self._is_changed and not self._is_reopened)
            self._is_read = True
        if mask & IN_OPEN:
            self._opens += 1
            self._is_reopened = True
        self._closed += bool(mask & IN_CLOSE_WRITE)

    def _tear(self, is_other: bool) -> None:
        self.is_inconsistent = self.is_inconsistent or (is_other and not self._is_new)

    @property
    def is_read(self) -> bool:
        if self._is_new or not self._opens:
            return False
        return self._is_read or not self._is_changed or self._opens > self._closed


class FolderWatch:
    """Watches what is opened and written directly in folders, from construction on, by whomever.

    A folder that can't be watched (gone, no watch left) is passed over: what native code opens there goes unseen.
    ``overflowed``: the kernel had more to tell than its queue holds (``fs.inotify.max_queued_events``).
    """

    def __init__(self, folders: Iterable[str], was_there: Callable[[str], bool | None] = lambda _: None) -> None:
        """was_there: whether a file was there when the watch began, None where that is not known."""
        self._was_there = was_there
        self._folders: dict[int, list[str]] = {}  # names of one folder share a watch
        self._queue, before = _idle_or_new()
        self._names: dict[str, _Name] = {}
        self.overflowed = False
        self._lock = threading.Lock()
        self._pauses = 0
        if self._queue is None:
            return
        for folder in folders:
            with suppress(OSError):
                self._folders.setdefault(self._queue.watch(folder, _NAMES), []).append(folder)
        for watch in before - self._folders.keys():
            self._queue.unwatch(watch)
        with suppress(OSError):
            for _ in self._queue.events():  # of before
                pass

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Until the body ends, openings don't count: they are known, or are of others. Changes count."""
        self._drain(by=1)
        try:
            yield
        finally:
            self._drain(by=-1)

    def _drain(self, *, by: int = 0) -> None:
        """Note what happened, and add to the count of pauses then."""
        with self._lock:
            for event in self._queue.events() if self._queue is not None else ():
                self.overflowed = self.overflowed or bool(event.mask & IN_Q_OVERFLOW)
                if event.name and not event.mask & IN_ISDIR and not _NAMELESS.fullmatch(event.name):
                    mask = event.mask & _CHANGED if self._pauses else event.mask
                    for folder in self._folders.get(event.watch, ()) if mask else ():
                        self._note(os.path.join(folder, os.fsdecode(event.name)), mask)
            self._pauses += by

    def _note(self, path: str, mask: int) -> None:
        if path not in self._names:
            is_new = mask & IN_CREATE or (mask & IN_MOVED_TO and self._was_there(path) is False)
            self._names[path] = _Name(mask, bool(is_new))
        self._names[path].add(mask)

    def drain(self) -> Opens:
        """What was opened so far."""
        self._drain()
        names = self._names.items()
        return Opens(
            frozenset(path for path, name in names if name.is_read and not name.is_inconsistent),
            frozenset(path for path, name in names if name.is_inconsistent),
            frozenset(path for path, name in names if name.is_begun),
        )

    def close(self) -> None:
        """Give the watches back. May be called twice."""
        queue, self._queue = self._queue, None
        if queue is None:
            return
        if queue.is_open and not _idle():
            _idle().append((queue, frozenset(self._folders)))
        else:
            queue.close()


@lru_cache(maxsize=1)
def _idle() -> list[tuple[Inotify, frozenset[int]]]:
    """At most one queue with its watches, kept for the next run, which mostly wants the same: to close one waits some
    10 ms for all processors (``synchronize_srcu`` in fs/notify/mark.c), and to watch a folder takes longer the more of
    its names the kernel remembers, 24 ms for 100,000."""
    return []


def _idle_or_new() -> tuple[Inotify | None, frozenset[int]]:
    """A queue and the watches that it has; None where the kernel gives none."""
    with suppress(IndexError):
        while not (idle := _idle().pop())[0].is_open:
            pass  # a forked child has its parent's no more
        return idle
    with suppress(OSError):
        return Inotify(), frozenset()
    return None, frozenset()
