"""Copies objects between a bundle and a store, and takes their digests on the way: of what is written."""

from __future__ import annotations

import os

from blake3 import blake3

from cachec.base import fsio
from cachec.weights.moving.relaying import Relay

#: What is larger is copied by two threads in turn; to start one takes as long as to copy a megabyte.
_LARGE = 4 << 20
#: Stays in the caches of a core.
_BUFFER = 1 << 18


class Transfer:
    """Copies ranges of files one after the other; to be used by one thread."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_BUFFER))

    def copy(self, source: int, begin: int, nbytes: int, target: int, offset: int) -> str:
        """Copy a range of the open file ``source`` to ``offset`` of ``target``; the digest of what was written.

        Raises OSError, EOFError where the source ends before.
        """
        if nbytes > _LARGE:
            return Relay(source, begin, nbytes, target, offset).run(lambda _: None)
        hasher = blake3()
        done = 0
        while done < nbytes:
            piece = self._buffer[: nbytes - done]
            fsio.pread_into(source, begin + done, piece)
            hasher.update(piece)
            write_at(target, piece, offset + done)
            done += len(piece)
        return hasher.hexdigest()


def write_at(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at an offset. Raises OSError."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done
