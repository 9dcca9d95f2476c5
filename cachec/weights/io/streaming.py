"""Weights one at a time: each is handed over, used, and freed before the next but one is read.

Where bytes are mapped, a thread brings the next weight into the page cache, and the pages of the last one are given
back; nothing is allocated. Where they have to be read (``access="read"``, slices that are put together), the thread
reads them into two buffers in turn. A buffer is used again only when nobody holds a view of it any more, so a consumer
that keeps an array keeps its memory, and never sees it change.
"""

from __future__ import annotations

import mmap
import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from cachec.base import fsio
from cachec.base.hashing import FileDigests
from cachec.errors import CachecError, UsageError
from cachec.weights.handles import Handles
from cachec.weights.sources import Source, Ways
from cachec.weights.tensor import Tensor
from cachec.weights.weight import Weight
from cachec.weights.wrappers import ComposedSource, RelayedSource


def stream(weights: Handles, read_ahead: int = 1) -> Iterator[Weight]:
    """The weights in the order of their files; see ``WeightSet.stream``."""
    if read_ahead not in {0, 1}:
        raise UsageError(f"stream: read_ahead expected 0 or 1, found {read_ahead!r}: two tensors are in memory at most")
    return _hand_over(weights, _in_file_order(weights), is_ahead=read_ahead == 1)


def _hand_over(weights: Handles, order: list[Weight], *, is_ahead: bool) -> Iterator[Weight]:
    reader = _ReadAhead(max((each.nbytes for each in order if _is_buffered(each)), default=0))
    try:
        for number, weight in enumerate(order):
            weight.expose()
            buffered = _BufferedSource(weight, reader.take(weight)) if _is_buffered(weight) else None
            if is_ahead and number + 1 < len(order):
                reader.ask(order[number + 1])
            if buffered is None:
                yield weight
                _drop_pages(weight)
            else:
                yield Weight(weight.name, weights.layout, buffered, weight.name)
                buffered.release()  # its turn is over: let the memory go
    finally:
        reader.close()


def _is_buffered(weight: Weight) -> bool:
    return weight.nbytes > 0 and weight.ways().copies


def _in_file_order(weights: Handles) -> list[Weight]:
    """The handles by source, file and offset: the order with the fewest seeks. By name in a stage."""
    numbers: dict[int, int] = {}

    def place(weight: Weight) -> tuple[int, int, int]:
        source, there = weight.within()
        while isinstance(source, ComposedSource):
            source, there = source.weights[there].within()
        number, tensor = numbers.setdefault(id(source), len(numbers)), weight.tensor
        return (number, tensor.file, tensor.offset) if source.tells_place(there) else (number, 0, 0)

    return sorted(weights.values(), key=place)


def _drop_pages(weight: Weight) -> None:
    """Give back the pages of a mapped weight. A view that the consumer still holds would fault them in again."""
    ways = weight.ways()
    extent = ways.extent()
    if extent is None or extent.nbytes == 0:
        return
    mapped = ways.view().obj
    if isinstance(mapped, mmap.mmap) and len(mapped) == extent.file.identity.size:
        start = extent.offset - extent.offset % mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, start, extent.offset + extent.nbytes - start)


class _BufferedSource(RelayedSource):
    """A weight whose bytes were read into memory; once they are given away or its turn is over, the weight as it was"""

    def __init__(self, weight: Weight, data: memoryview) -> None:
        self._weight = weight
        self._data: memoryview | None = data

    def within(self, name: str) -> tuple[Source, str]:
        return self._weight.within()

    def expose(self, name: str, tensor: Tensor, digests: FileDigests | None) -> None:
        if self._data is None:
            super().expose(name, self._weight.tensor, digests)

    def ways(self, name: str, tensor: Tensor) -> Ways:
        there = super().ways(name, tensor)
        if self._data is None:
            return there
        begin = tensor.offset - self._weight.tensor.offset
        data = self._data[begin : begin + tensor.nbytes]

        def given_away() -> memoryview:
            self.release()  # the caller may write to it: it is the only user
            return data

        return Ways(data.toreadonly, extent=there.extent, own=given_away)

    def changed(self) -> str | None:
        return self._weight.within()[0].changed()

    def state(self) -> bytes:
        return self._weight.within()[0].state()

    def release(self) -> None:
        self._data = None


class _Buffer:
    """Memory for one tensor at a time. What is handed out keeps a lease alive; when that ends, the memory is free."""

    def __init__(self, nbytes: int, free: queue.SimpleQueue[Any]) -> None:
        # Private: of shared anonymous memory, pages do not go by MADV_DONTNEED.
        self._memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._free = free
        self._lease: weakref.ref[Any] | None = None
        self.is_abandoned = False

    @property
    def is_lent(self) -> bool:
        """Whether a view of it is in use."""
        return self._lease is not None and self._lease() is not None

    def lend(self, nbytes: int) -> memoryview:
        """The first ``nbytes`` bytes, writable; the pages beyond them are given back."""
        import numpy as np

        beyond = nbytes + -nbytes % mmap.PAGESIZE
        if beyond < len(self._memory):
            self._memory.madvise(mmap.MADV_DONTNEED, beyond, len(self._memory) - beyond)
        lease = np.frombuffer(self._memory, np.uint8, nbytes)
        self._lease = weakref.ref(lease, self._take_back)
        return lease.data

    def _take_back(self, _lease: object) -> None:
        # Runs wherever the last view goes, perhaps inside the collector: a SimpleQueue may be used there.
        if not self.is_abandoned:
            self._free.put(self)


class _ReadAhead:
    """A thread that makes the next weight ready: in one of two buffers, or in the page cache."""

    def __init__(self, largest: int) -> None:
        """largest: bytes of the largest weight that is read into a buffer."""
        self._largest = largest
        self._buffers: list[_Buffer] = []
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._wanted: queue.SimpleQueue[Weight | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[memoryview | BaseException] = queue.SimpleQueue()
        self._has_buffer = threading.Event()
        self._asked: Weight | None = None
        self._thread: threading.Thread | None = None

    def ask(self, weight: Weight) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cachec-stream", daemon=True)
            self._thread.start()
            for _ in range(2 if self._largest else 0):
                self._add_buffer()
        if _is_buffered(weight):
            self._asked = weight
            self._has_buffer.clear()
            lent = sum(buffer.is_lent for buffer in self._buffers)
            while self._free.qsize() > max(2 - lent, 1):  # one was added because a view seemed to be in use
                self._buffers.remove(self._free.get())
        self._wanted.put(weight)

    def take(self, weight: Weight) -> memoryview:
        """The bytes of a weight that is read into a buffer. Raises what reading it raised."""
        if self._asked is not weight:
            self.ask(weight)
        self._asked = None
        if not self._has_buffer.is_set() and self._free.empty():
            # The consumer keeps views of what it got before: that memory is its own now.
            for lent_buffer in [each for each in self._buffers if each.is_lent]:
                lent_buffer.is_abandoned = True
                self._buffers.remove(lent_buffer)
            self._add_buffer()
        data = self._ready.get()
        if isinstance(data, BaseException):
            raise data
        return data

    def close(self) -> None:
        self._wanted.put(None)
        self._free.put(None)
        # An unclosed generator may be collected in any thread, in this one too.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _add_buffer(self) -> None:
        buffer = _Buffer(self._largest, self._free)
        self._buffers.append(buffer)
        self._free.put(buffer)

    def _run(self) -> None:
        while (weight := self._wanted.get()) is not None:
            if not _is_buffered(weight):
                _read_pages(weight)
                continue
            buffer = self._free.get()
            if buffer is None:
                return
            self._has_buffer.set()
            data = buffer.lend(weight.nbytes)
            try:
                weight.ways().fill(data)
            except BaseException as error:  # noqa: BLE001 - raised again where the weight's turn comes
                self._ready.put(error)
            else:
                self._ready.put(data)
            del data, weight


def _read_pages(weight: Weight) -> None:
    try:
        extent = weight.ways().extent()
        if extent is not None:
            fsio.will_need(extent.fd, extent.offset, extent.nbytes)
    except (CachecError, OSError):
        return  # whatever it is, it is raised where the weight's turn comes
