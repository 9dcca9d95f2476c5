"""Fetching while what came is hashed and written: both let go of the interpreter, and neither waits for the other."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Semaphore, Thread

#: The number of pieces in the queue between the two threads.
_BETWEEN = 2


def prefetch_pieces(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Return the same pieces, read ahead by a thread; raises its errors. If the caller stops early, the thread ends
    after its current piece.
    """
    came: SimpleQueue[bytes | Exception | None] = SimpleQueue()
    slots = Semaphore(_BETWEEN)
    stopped: list[bool] = []

    def take() -> None:
        last: Exception | None = None
        try:
            for piece in pieces:
                slots.acquire()
                if stopped:
                    break
                came.put(piece)
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that asks
            last = error
        finally:
            if close := getattr(pieces, "close", None):
                close()  # here, where it runs
            came.put(last)

    Thread(target=take, daemon=True).start()
    try:
        while (piece := came.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece
            slots.release()
    finally:
        stopped.append(True)
        slots.release()
