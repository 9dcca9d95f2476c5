"""Weights as IREE takes its parameters: in place where their address fits, else read into memory where it does.

IREE uses a parameter where it lies only if its address is a multiple of 64 bytes (``IREE_HAL_HEAP_BUFFER_ALIGNMENT``)
and copies it otherwise, page fault by page fault, while nothing else can run. A safetensors file aligns its data to 8
bytes, so most are of the second kind: those are read here, by a thread that begins before IREE's runtime (and numpy) is
imported, into huge pages. Neither this module nor the thread needs numpy.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Mapping

from cachec.weights import Weight, WeightSet

#: IREE_HAL_HEAP_BUFFER_ALIGNMENT (runtime/src/iree/hal/buffer.h).
ALIGNMENT = 64


class Parameters:
    """The bytes of a weight set by name. Reading begins when this is made; ``views`` waits for it."""

    def __init__(self, weights: WeightSet) -> None:
        """Raises as ``Weight.read`` does where a weight can't be read."""
        self._views: dict[str, memoryview] = {}
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        moved: dict[str, Weight] = {}
        size = 0
        for name, weight in weights.items():
            extent = weight.extent()
            if extent is None or extent.offset % ALIGNMENT == 0:
                self._views[name] = weight.raw()
            else:
                moved[name] = weight
                size += _padded(weight.nbytes)
        if size:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_HUGEPAGE)
            self._thread = threading.Thread(target=self._read, args=(moved, memoryview(memory)), name="cachec-weights")
            self._thread.start()

    def views(self) -> Mapping[str, memoryview]:
        """Name -> bytes, read-only. They keep their memory alive. Raises what reading raised."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._views

    def _read(self, weights: Mapping[str, Weight], memory: memoryview) -> None:
        try:
            at = 0
            for name, weight in weights.items():
                part = memory[at : at + weight.nbytes]
                weight.ways().fill(part)  # the interpreter runs on meanwhile
                self._views[name] = part.toreadonly()
                at += _padded(weight.nbytes)
        except Exception as error:  # noqa: BLE001 - raised where the views are asked for
            self._error = error


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
