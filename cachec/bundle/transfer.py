"""Copies objects between a bundle and a store, and takes their digests on the way: of what is written.

Two threads copy at once, each of which takes the next object, the largest first. What is larger than all others
together they copy in turn, piece by piece. Either way each byte is read once, hashed while it is in the caches of a
core, and written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from blake3 import blake3

from cachec.base import fsio, ranges
from cachec.base.workers import in_threads
from cachec.bundle.format import BundleMember
from cachec.weights.io.copy_and_hash import Relay

#: What is smaller is never copied in turn; to start a thread takes as long as to copy a megabyte.
_LARGE = 4 << 20
#: Stays in the caches of a core.
_BUFFER = 1 << 18
#: More would wait for each other: they copy and hash at the speed of memory.
_THREADS = 2


class Transfer(threading.local):
    """Copies and hashes ranges of files. Each thread that uses one has a buffer of its own."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_BUFFER))

    def copy(self, source: int, begin: int, nbytes: int, target: int, offset: int, *, by_two: bool) -> str:
        """Copy a range of the open file ``source`` to ``offset`` of ``target``; the digest of what was written.

        by_two: with a second thread. Raises OSError, EOFError where the source ends before.
        """
        if by_two:
            return Relay(source, begin, nbytes, target, offset).run(lambda _: None)
        return self._transfer_range(source, begin, nbytes, lambda piece, done: write_at(target, piece, offset + done))

    def plain(self, source: int, begin: int, nbytes: int, target: int, offset: int) -> None:
        """Copy a range without its digest, by the kernel as far as that goes. Raises as ``copy``."""
        done = sum(ranges.shared_or_mapped(source, begin, nbytes, target, offset, least=_BUFFER))
        while done < nbytes:
            piece = self._buffer[: nbytes - done]
            fsio.pread_into(source, begin + done, piece)
            write_at(target, piece, offset + done)
            done += len(piece)

    def digest(self, source: int, begin: int, nbytes: int) -> str:
        """The digest of a range. Raises as ``copy``."""
        return self._transfer_range(source, begin, nbytes, lambda piece, done: None)

    def _transfer_range(self, source: int, begin: int, nbytes: int, write: Callable[[memoryview, int], None]) -> str:
        hasher = blake3()
        done = 0
        while done < nbytes:
            piece = self._buffer[: nbytes - done]
            fsio.pread_into(source, begin + done, piece)
            hasher.update(piece)
            write(piece, done)
            done += len(piece)
        return hasher.hexdigest()


def for_each(work: Callable[[BundleMember, bool], object], members: Sequence[BundleMember]) -> None:
    """Call ``work``, which transfers an object, for each member, and with whether it may use a second thread.

    Raises the first exception, after all threads have ended.
    """
    largest_first = sorted(members, key=lambda member: member.size, reverse=True)
    remaining = sum(member.size for member in members)
    count = 0
    for member in largest_first:
        if member.size <= max(_LARGE, remaining // 2):
            break
        work(member, True)
        remaining -= member.size
        count += 1
    worth = 1 if remaining > _LARGE else 8
    in_threads(lambda member: work(member, False), largest_first[count:], threads=_THREADS, worth=worth)


def write_at(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at an offset. Raises OSError."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done
