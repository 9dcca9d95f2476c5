"""Work that mostly waits for the disk, shared among a few threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")

#: Threads, this one with them. Removing a file waits for the journal, and on some disks for a discard: eight at once
#: take a fifth of the time.
THREADS = 8

#: Items for which a thread is worth starting.
_WORTH = 8


def in_threads(work: Callable[[T], object], items: Sequence[T], *, threads: int = THREADS, worth: int = _WORTH) -> None:
    """Call ``work`` with each item. This thread takes part, so it goes on where no other can be started.

    threads: how many at most, this one with them. worth: items for which one more is started. The first exception ends
    it, once the calls that have begun are over, and is raised.
    """
    waiting: SimpleQueue[T] = SimpleQueue()
    for item in items:
        waiting.put(item)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            while not raised:
                work(waiting.get_nowait())
        except Empty:
            return
        except BaseException as error:  # noqa: BLE001 - raised below, by the thread that asked
            raised.append(error)

    helpers: list[threading.Thread] = []
    try:
        for _ in range(min(threads, len(items) // worth) - 1):
            thread = threading.Thread(target=run, name="cachec-worker", daemon=True)
            thread.start()
            helpers.append(thread)
    except RuntimeError:
        pass  # the process is ending, or may have no more of them
    try:
        run()
    finally:
        for thread in helpers:
            thread.join()
    if raised:
        raise raised[0]
