"""Tensors of which some are values that no file holds as they are: small constants, and patterns repeated on demand."""

from __future__ import annotations

import mmap

from cachec.base.hashing import FileDigests
from cachec.errors import WeightError
from cachec.weights.dtypes import SIZES
from cachec.weights.formats.base import Value
from cachec.weights.sources import FileSource, OpenedFile, Ranges, Ways
from cachec.weights.tensor import Tensor

_BLOCK = 1 << 20


class ValueSource(FileSource):
    """Tensors in files and values, distinguished by ``Tensor.file``: below 0 is the value ``-1 - file``.

    A repeated pattern takes no memory to open, to hash or to copy. Zeros are handed out as pages that the kernel makes
    when they are touched; any other pattern has to be made in full.
    """

    def __init__(self, files: tuple[OpenedFile, ...], values: tuple[Value, ...], *, read_access: bool = False) -> None:
        super().__init__(files, read_access=read_access)
        self._values = values
        self._digests: dict[tuple[int, int, int], str] = {}

    def expose(self, name: str, tensor: Tensor, digests: FileDigests | None) -> None:
        if tensor.file < 0:
            self._value(name, tensor)
        else:
            super().expose(name, tensor, digests)

    def digest(self, name: str, tensor: Tensor, digests: FileDigests | None) -> str:
        if tensor.file >= 0:
            return super().digest(name, tensor, digests)
        pattern = self._value(name, tensor)
        key = (tensor.file, tensor.offset, tensor.nbytes)
        known = self._digests.get(key)  # values never change
        if known is None:
            known = self._digests[key] = _repeat_pattern(pattern, tensor.nbytes).digest()
        return known

    def ways(self, name: str, tensor: Tensor) -> Ways:
        if tensor.file >= 0:
            return super().ways(name, tensor)
        pattern, nbytes = self._value(name, tensor), tensor.nbytes
        if len(pattern) >= nbytes:
            return Ways(lambda: memoryview(pattern)[:nbytes])
        is_zero = not pattern.strip(b"\0")
        return Ways(
            lambda: _zeros(name, nbytes, mmap.PROT_READ) if is_zero else _whole(name, nbytes, pattern),
            copies=not is_zero,
            ranges=lambda: _repeat_pattern(pattern, nbytes),
            own=(lambda: _zeros(name, nbytes, mmap.PROT_READ | mmap.PROT_WRITE)) if is_zero else None,
        )

    def _value(self, name: str, tensor: Tensor) -> bytes:
        """The pattern from the tensor's first byte on, empty only for no bytes; the file it is from is checked."""
        value = self._values[-1 - tensor.file]
        self._bind(name, Tensor("uint8", (), 0, 0, value.file))
        pattern, size = value.pattern, SIZES[tensor.dtype]
        at = tensor.offset % len(pattern) if pattern else 0
        if at == 0 and len(pattern) % size == 0:
            return pattern
        # Sliced where a view would be misaligned, or rotated where the pattern repeats: a copy, of the pattern only.
        return pattern[at:] + pattern[:at] if len(pattern) < value.nbytes else pattern[at : at + tensor.nbytes]


def _zeros(name: str, nbytes: int, prot: int) -> memoryview:
    try:
        return memoryview(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=prot))
    except (OSError, OverflowError, ValueError) as error:
        raise _too_large(name, nbytes) from error


def _whole(name: str, nbytes: int, pattern: bytes) -> memoryview:
    try:
        whole = pattern * (nbytes // len(pattern))
        return memoryview(whole + pattern[: nbytes % len(pattern)] if nbytes % len(pattern) else whole)
    except (MemoryError, OverflowError) as error:
        raise _too_large(name, nbytes) from error


def _too_large(name: str, nbytes: int) -> WeightError:
    return WeightError(f"weight {name!r}: a repeated pattern of {nbytes} bytes, which does not fit into memory")


def _repeat_pattern(pattern: bytes, nbytes: int) -> Ranges:
    """``pattern`` over and over, up to ``nbytes``."""
    block = pattern * max(_BLOCK // len(pattern), 1) if nbytes else b""

    def read(begin: int, out: memoryview) -> None:
        at = begin % len(pattern) if out.nbytes else 0
        done = 0
        while done < len(out):
            piece = out[done : done + len(block) - at]
            piece[:] = block[at : at + len(piece)]
            done += len(piece)
            at = 0  # a block ends with a whole pattern

    return Ranges(nbytes, read)
