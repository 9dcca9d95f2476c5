"""How large a store is and may be, and a result that is to be in it.

The size is one row of the index (``usage:``), so that a publication knows without looking. ``gc`` measures it; each
publication adds what its process has written since. So it can only be too large (an object that was lost counts until
the next ``gc``), or short of what processes wrote that died before they published. Each version of the records has a
row: what only another version needs does not count, as this one can't free it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from cachec.base import fsio
from cachec.errors import StoreFault
from cachec.model import RECORD_VERSION, ArtifactRef, Fault

if TYPE_CHECKING:
    from cachec.store.artifacts import ArtifactSink

ROW = "usage:"
TAG = "usage"

#: Bytes in a block of the usual file systems.
_BLOCK = 4096

_Count = Annotated[int, msgspec.Meta(ge=0)]

#: Of what the disk has free, and what the store has already: a cache must not be what fills it.
DISK_SHARE = 0.5

#: Where ``gc`` after a publication comes down to, of the limit.
LOW_WATER = 0.9


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of disk."""

    version: int
    #: Of artifacts, and of what trees hold beside them.
    nbytes: _Count
    #: What the last ``gc`` could not go below.
    rest: _Count = 0

    def grown(self, nbytes: int) -> Usage:
        """With so many bytes more, or less where negative."""
        return Usage(version=RECORD_VERSION, nbytes=max(0, self.nbytes + nbytes), rest=self.rest)


def disk_bytes(size: int) -> int:
    """Bytes of disk that a file of ``size`` bytes takes, in blocks of 4 KiB."""
    return -(-size // _BLOCK) * _BLOCK


def limit(max_size: int, folder: Path, nbytes: int) -> int | None:
    """The bytes that a store of ``nbytes`` in ``folder`` may have; None for no limit (``max_size`` 0).

    Raises StoreFault where the file system can't be asked.
    """
    if not max_size:
        return None
    place = folder
    with fsio.faults(f"asking for the free space of {place}"):
        while not place.exists() and place.parent != place:
            place = place.parent
        space = os.statvfs(place)
    return min(max_size, int((space.f_bavail * space.f_frsize + nbytes) * DISK_SHARE))


def is_due(usage: Usage, limit: int) -> bool:
    """Whether a ``gc`` may help: over the limit, and by a tenth of it over what the last one could not go below."""
    return usage.nbytes > max(limit, usage.rest + int(limit * (1 - LOW_WATER)) if usage.rest else limit)


def is_over(usage: Usage, max_size: int, folder: Path) -> bool:
    """Whether a store of this size is to come down. Raises StoreFault as ``limit``."""
    allowed = limit(max_size, folder, usage.nbytes)
    return allowed is not None and is_due(usage, allowed)


class BoundedSink:
    """Where the artifacts of one result go: no more than ``largest`` bytes of it, 0 for any number. What is larger than
    the store may be would have everything else evicted. Raises StoreFault STORE_FULL before more is written.
    """

    def __init__(self, sink: ArtifactSink, largest: int) -> None:
        self._sink = sink
        self._largest = largest
        self._taken = 0
        #: What was taken.
        self.refs: list[ArtifactRef] = []

    def expect(self, size: int) -> None:
        """See whether so many bytes more would be taken."""
        if 0 < self._largest < self._taken + size:
            raise StoreFault(
                Fault.STORE_FULL, f"{self._taken + size} bytes of a result are more than max_size={self._largest}"
            )

    def _take(self, size: int) -> None:
        self.expect(size)
        self._taken += size

    def add_bytes(self, data: bytes | bytearray | memoryview) -> ArtifactRef:
        """See ArtifactSink."""
        self._take(memoryview(data).nbytes)
        return self._taken_as(self._sink.add_bytes(data))

    def add_pieces(self, pieces: Iterable[memoryview]) -> ArtifactRef:
        """See ArtifactSink."""

        def counted_pieces() -> Iterator[memoryview]:
            for piece in pieces:
                self._take(piece.nbytes)
                yield piece

        return self._taken_as(self._sink.add_pieces(counted_pieces()))

    def add_file(self, path: str | os.PathLike[str]) -> ArtifactRef:
        """See ArtifactSink."""
        self._take(os.stat(path).st_size)
        return self._taken_as(self._sink.add_file(path))

    def _taken_as(self, ref: ArtifactRef) -> ArtifactRef:
        self.refs.append(ref)
        return ref
