"""Copies objects between a bundle and a store, and takes their digests on the way: of what is written.

What is large is copied by two threads in turn, one object after the other; all others by two threads at once, each of
which takes the next. Either way each byte is read once, hashed while it is in the caches of a core, and written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from blake3 import blake3

from cachec.base import fsio
from cachec.base.workers import in_threads
from cachec.bundle.format import BundleMember
from cachec.weights.moving.relaying import Relay

#: What is larger is copied by two threads in turn; to start one takes as long as to copy a megabyte.
_LARGE = 4 << 20
#: Stays in the caches of a core.
_BUFFER = 1 << 18
#: More would wait for each other: they copy and hash at the speed of memory.
_THREADS = 2


class Transfer(threading.local):
    """Copies and hashes ranges of files. Each thread that uses one has a buffer of its own."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_BUFFER))

    def copy(self, source: int, begin: int, nbytes: int, target: int, offset: int) -> str:
        """Copy a range of the open file ``source`` to ``offset`` of ``target``; the digest of what was written.

        Raises OSError, EOFError where the source ends before.
        """
        if nbytes > _LARGE:
            return Relay(source, begin, nbytes, target, offset).run(lambda _: None)
        return self._taken(source, begin, nbytes, lambda piece, done: write_at(target, piece, offset + done))

    def digest(self, source: int, begin: int, nbytes: int) -> str:
        """The digest of a range. Raises as ``copy``."""
        return self._taken(source, begin, nbytes, lambda piece, done: None)

    def _taken(self, source: int, begin: int, nbytes: int, write: Callable[[memoryview, int], None]) -> str:
        hasher = blake3()
        done = 0
        while done < nbytes:
            piece = self._buffer[: nbytes - done]
            fsio.pread_into(source, begin + done, piece)
            hasher.update(piece)
            write(piece, done)
            done += len(piece)
        return hasher.hexdigest()


def for_each(work: Callable[[BundleMember], object], members: Sequence[BundleMember]) -> None:
    """Do ``work``, which transfers an object, for each. Raises the first exception, once nobody works any more."""
    for member in members:
        if member.size > _LARGE:
            work(member)
    in_threads(work, [member for member in members if member.size <= _LARGE], threads=_THREADS)


def write_at(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at an offset. Raises OSError."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done
