"""How large a store may be, and a result that is to be in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cachec.base import fsio
from cachec.errors import StoreFault
from cachec.model import ArtifactRef, Fault

if TYPE_CHECKING:
    from cachec.store.artifacts import ArtifactSink
    from cachec.store.usage import Usage

#: Of what the disk has free, and what the store has already: a cache must not be what fills it.
DISK_SHARE = 0.5

#: Where ``gc`` after a publication comes down to, of the limit.
LOW_WATER = 0.9


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
