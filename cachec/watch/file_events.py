"""Events of the file system, by watchdog: only a reason to look. Folders that are removed and made again are followed
again; where the kernel gives no more watches, looking now and then has to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from watchdog import events
from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

if TYPE_CHECKING:
    from watchdog.observers.api import ObservedWatch

#: The limit of watched folders, as each has a thread of watchdog. Files in other folders are checked periodically.
MAX_FOLDERS = 64

#: Seconds between two wakes of a thread of watchdog that hears of nothing.
_TIMEOUT = 30.0

#: Not opens and reads: those are our own.
_WANTED: list[type[FileSystemEvent]] = [
    events.DirCreatedEvent,
    events.DirDeletedEvent,
    events.DirMovedEvent,
    events.FileClosedEvent,
    events.FileCreatedEvent,
    events.FileDeletedEvent,
    events.FileModifiedEvent,
    events.FileMovedEvent,
]


class Notices:
    """Calls ``wake`` when something happens in a followed folder to a path that ``concerns`` takes, from a thread of
    watchdog."""

    def __init__(self, wake: Callable[[], None], concerns: Callable[[str], bool]) -> None:
        self._handler = _Handler(wake, concerns)
        self._observer = Observer(timeout=_TIMEOUT)
        self._watches: dict[str, tuple[ObservedWatch, tuple[int, int]]] = {}
        self.refused = 0
        self._observer.start()

    def follow(self, folders: Iterable[str]) -> None:
        """Follow exactly these folders, as they are now; one that is not there is left out until it is."""
        wanted = list(dict.fromkeys(folders))[:MAX_FOLDERS]
        there = {folder: place for folder in wanted if (place := _place(folder)) is not None}
        for folder, (watch, place) in list(self._watches.items()):
            if there.get(folder) != place:
                del self._watches[folder]
                self._drop(watch)
        self.refused = 0
        for folder, place in there.items():
            if folder in self._watches:
                continue
            try:
                watch = self._observer.schedule(self._handler, folder, recursive=False, event_filter=_WANTED)
            except OSError:  # no more watches, or gone again
                self.refused += 1
            else:
                self._watches[folder] = (watch, place)

    def _drop(self, watch: ObservedWatch) -> None:
        try:
            self._observer.unschedule(watch)
        except (KeyError, OSError):  # watchdog let go of it by itself, as its folder is gone
            return

    def close(self) -> None:
        """Stop."""
        self._observer.stop()
        self._observer.join()


class _Handler(FileSystemEventHandler):
    def __init__(self, wake: Callable[[], None], concerns: Callable[[str], bool]) -> None:
        self._wake = wake
        self._concerns = concerns

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Whatever it is."""
        if self._concerns(os.fsdecode(event.src_path)) or (
            event.dest_path and self._concerns(os.fsdecode(event.dest_path))
        ):
            self._wake()


def _place(folder: str) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return (status.st_dev, status.st_ino)
