"""Equal pieces at equal distances: what a slice of a row-major tensor is, whatever its axis."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import NamedTuple

from cachec.base import fsio

#: Pieces that are closer than a page share their pages anyway: they are read together, in blocks.
_PAGE = 4096
_BLOCK = 1 << 20


class Spans(NamedTuple):
    """``number`` pieces of ``width`` bytes, the first at byte ``first``, ``stride`` bytes from start to start."""

    first: int
    width: int
    stride: int
    number: int
    #: Bytes from start to start in the target; the bytes between pieces do not change.
    step: int

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return self.width * self.number


def slice_spans(shape: tuple[int, ...], item: int, axis: int, begin: int, length: int, padded: int) -> Spans:
    """The spans of ``[begin, begin + length)`` along ``axis`` of a row-major array of ``item``-byte elements.

    padded: the length of that axis where they are put, at least ``length``.
    """
    inner = math.prod(shape[axis + 1 :]) * item
    count = math.prod(shape[:axis])
    return Spans(begin * inner, length * inner, shape[axis] * inner, count, padded * inner)


def within_spans(spans: Spans, begin: int, nbytes: int) -> Iterator[tuple[Spans, int]]:
    """What of the pieces belongs into the bytes ``[begin, begin + nbytes)`` of where they are put.

    Gives spans, and where in that range their first piece goes: whole pieces together, cut ones by themselves.
    """
    first, width, stride, _, step = spans
    at = 0
    while at < nbytes:
        row, column = divmod(begin + at, step)
        rows = (nbytes - at) // step if column == 0 else 0
        if rows:
            yield Spans(first + row * stride, width, stride, rows, step), at
            at += rows * step
            continue
        length = min(step - column, nbytes - at)
        there = min(column + length, width) - column
        if there > 0:
            yield Spans(first + row * stride + column, there, there, 1, there), at
        at += length


def copy_spans(data: memoryview, spans: Spans, out: memoryview) -> None:
    """Copy the pieces from memory."""
    if not spans.nbytes:
        return
    import numpy as np
    from numpy.lib.stride_tricks import as_strided

    first, width, stride, count, step = spans
    if first + (count - 1) * stride + width > len(data) or (count - 1) * step + width > len(out):
        raise IndexError(f"{spans} leaves {len(data)} bytes, or does not fit into {len(out)}")
    pieces = as_strided(np.frombuffer(data, np.uint8)[first:], (count, width), (stride, 1), writeable=False)
    as_strided(np.frombuffer(out, np.uint8), (count, width), (step, 1))[:] = pieces


def read_spans(fd: int, start: int, spans: Spans, out: memoryview) -> None:
    """Read the pieces from a file in which the tensor begins at ``start``: no page that holds none of them, no tensor
    as a whole. Raises EOFError on a file that is too short.
    """
    first, width, stride, count, step = spans
    if not spans.nbytes:
        return
    if count == 1 or width == stride == step:
        fsio.pread_into(fd, start + first, out[: spans.nbytes])
        return
    if stride - width < _PAGE and stride < _BLOCK:
        _read_blocks(fd, start, spans, out)
        return
    # Read-ahead would load the bytes between the pieces.
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    try:
        for number in range(count):
            at = number * step
            fsio.pread_into(fd, start + first + number * stride, out[at : at + width])
    finally:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL)


def _read_blocks(fd: int, start: int, spans: Spans, out: memoryview) -> None:
    first, width, stride, count, step = spans
    rows = min(_BLOCK // stride, count)
    block = memoryview(bytearray((rows - 1) * stride + width))
    for row in range(0, count, rows):
        here = min(rows, count - row)
        part = block[: (here - 1) * stride + width]
        fsio.pread_into(fd, start + first + row * stride, part)
        copy_spans(part, Spans(0, width, stride, here, step), out[row * step :])
