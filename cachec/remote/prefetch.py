"""Fetching while what came is hashed and written: both let go of the interpreter, and neither waits for the other."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Semaphore, Thread

#: Pieces that may lie between the two.
_BETWEEN = 2


def prefetch_pieces(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces, taken by a thread meanwhile; raises what that raises. Who stops early stops the thread, which
    ends with the piece that it waits for.
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
