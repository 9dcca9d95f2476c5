"""Weights as parameters for IREE: in place if their address is aligned, otherwise read into aligned memory.

IREE uses a parameter in place only if its address is a multiple of 64 bytes (``IREE_HAL_HEAP_BUFFER_ALIGNMENT``).
Otherwise IREE copies it, page fault by page fault, with the process blocked. A safetensors file aligns its data to 8
bytes, so most weights are not aligned. A thread of this module reads those into huge pages. It starts before the import
of IREE's runtime (and numpy), and needs no numpy.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Mapping

from cachec.weights import Weight, WeightSet

#: IREE_HAL_HEAP_BUFFER_ALIGNMENT (runtime/src/iree/hal/buffer.h).
ALIGNMENT = 64


class Parameters:
    """The bytes of a weight set by name. The constructor starts to read them, and ``views`` waits for the end."""

    def __init__(self, weights: WeightSet) -> None:
        """Raises as ``Weight.read`` does if a weight can't be read."""
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
                size += _round_up(weight.nbytes)
        if size:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_HUGEPAGE)
            self._thread = threading.Thread(target=self._read, args=(moved, memoryview(memory)), name="cachec-weights")
            self._thread.start()

    def views(self) -> Mapping[str, memoryview]:
        """Return name -> bytes, read-only. They keep their memory alive. Raises the errors of reading."""
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
                weight.ways().fill(part)  # without the interpreter's lock
                self._views[name] = part.toreadonly()
                at += _round_up(weight.nbytes)
        except Exception as error:  # noqa: BLE001 - ``views`` raises it
            self._error = error


def _round_up(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
