"""Lists of numbers in MLIR text, ``dense<[[1.0, 2.0], [3.0, 4.0]]>``, as the bytes that MLIR makes of them.

What MLIR does (LLVM, ``mlir/lib/AsmParser/AttributeParser.cpp``, class TensorLiteralParser): a float is read as a
double, rounded to nearest even, and that is rounded to nearest even once more to the element type; a hexadecimal number
in a list of floats is a bit pattern. A list whose bytes are not certain (another notation, a comment within, a value
that overflows, a mix of several) is no list here: it stays in the text.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from cachec.weights.dtypes import SIZES, numpy_dtype

if TYPE_CHECKING:
    from mmap import mmap

    import numpy as np

#: Bytes of text that are converted together.
_STEP = 1 << 20
_SPACE = b" \t\r\n"
_FLOAT = rb"-?[0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]++)?+"
_INTEGER = rb"-?[0-9]{1,18}+"
#: The notation of a whole chunk, in which numpy reads numbers by itself, and of one number that it does not read.
_HEXADECIMAL = re.compile(rb"0x[0-9A-Fa-f]{1,16}")
_LARGE = re.compile(rb"-?[0-9]{19,20}")
#: Characters that say how a list is nested; complex numbers are in parentheses.
_STRUCTURE = b"[](),"
_NOT_STRUCTURE = bytes(set(range(256)) - set(_STRUCTURE))
#: Types of which nothing here knows how MLIR rounds.
_UNKNOWN = frozenset({"float8_e8m0fnu"})
_WIDE = {"float32", "float64", "float16"}


def _chunks_of(number: bytes) -> re.Pattern[bytes]:
    item = rb"[\s\[(]*+" + number + rb"[\s\])]*+"
    return re.compile(rb"(?:" + item + rb",)*+" + item)


_OF_FLOATS = _chunks_of(_FLOAT)
_OF_INTEGERS = _chunks_of(_INTEGER)
_OF_BOOLS = _chunks_of(rb"(?:true|false)")
#: Any number, also hexadecimal and large ones, which are checked one by one.
_OF_ANY = _chunks_of(rb"(?:" + _FLOAT + rb"(?![0-9A-Za-z.])|0x[0-9A-Fa-f]++|-?[0-9]++)")


def parse_elements(
    text: memoryview | mmap | bytes, start: int, end: int, dtype: str, shape: tuple[int, ...]
) -> bytes | None:
    """The little-endian bytes of the list in ``[start, end)`` of a text; None where they are not certain.

    dtype, shape: of the tensor, by cachec's names. Memory: the bytes, and one per element for its comma.
    """
    if dtype in _UNKNOWN or not shape or _bracket_count(shape, paired=dtype.startswith("complex")) > end - start:
        return None
    out: list[bytes] = []
    structure: list[bytes] = []
    at = start
    while at < end:
        upto = min(end, at + _STEP)
        data = bytes(text[at:upto])
        if upto < end:
            cut = _last_comma(data, paired=dtype.startswith("complex"))
            if cut < 0:
                return None  # a number of a mebibyte
            data = data[:cut]
        structure.append(data.translate(None, _NOT_STRUCTURE))
        values = _convert(data, dtype)
        if values is None:
            return None
        out.append(values)
        at += len(data)
        if at < end:
            structure.append(b",")
            at += 1
    if b"".join(structure) != _nesting(shape, paired=dtype.startswith("complex")):
        return None
    data = b"".join(out)
    return data if len(data) == math.prod(shape) * SIZES[dtype] else None


def _last_comma(data: bytes, *, paired: bool) -> int:
    """Where a chunk is cut: the comma behind a whole element. -1 for none."""
    cut = data.rfind(b",")
    if paired:
        closed = data.rfind(b")")
        cut = data.rfind(b",", 0, data.rfind(b"(", 0, closed)) if closed >= 0 else -1
    return cut


def _bracket_count(shape: tuple[int, ...], *, paired: bool) -> int:
    """How many brackets and commas a list of this shape has."""
    count = 3 if paired else 0
    for extent in reversed(shape):
        count = 2 + count * extent + extent - 1
    return count


def _nesting(shape: tuple[int, ...], *, paired: bool) -> bytes:
    inner = b"(,)" if paired else b""
    for extent in reversed(shape):
        if extent == 0:
            return b""  # not written as a list
        inner = b"[" + (inner + b",") * (extent - 1) + inner + b"]"
    return inner


def _convert(data: bytes, dtype: str) -> bytes | None:
    import numpy as np

    flat = data.translate(None, b"[]()" + _SPACE)
    if dtype == "bool":
        if not _OF_BOOLS.fullmatch(data):
            return None
        return bytes(
            flat.replace(b"true", b"1").replace(b"false", b"0").translate(bytes.maketrans(b"01", b"\0\1"), b",")
        )
    target = numpy_dtype(dtype)
    if target.kind in "iu":
        return _integers(data, flat, target)
    part = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    if _OF_FLOATS.fullmatch(data):
        return _round(np.fromstring(flat.decode(), np.float64, sep=","), part)
    if not _OF_ANY.fullmatch(data):
        return None
    bits = SIZES[part] * 8
    out: list[bytes] = []
    for token in flat.split(b","):
        if _HEXADECIMAL.fullmatch(token):
            pattern = int(token, 16)
            one = pattern.to_bytes(8, "little")[: bits // 8] if pattern >> bits == 0 else None
        else:
            one = _round(np.array([float(token)]), part) if b"." in token else None
        if one is None:
            return None
        out.append(one)
    return b"".join(out)


def _integers(data: bytes, flat: bytes, target: np.dtype[Any]) -> bytes | None:
    import numpy as np

    low, high = int(np.iinfo(target).min), int(np.iinfo(target).max)
    if _OF_INTEGERS.fullmatch(data):
        values = np.fromstring(flat.decode(), np.int64, sep=",")
        if values.size and (int(values.min()) < low or int(values.max()) > high):
            return None
        return values.astype(target).tobytes()
    if not _OF_ANY.fullmatch(data):
        return None
    out: list[bytes] = []
    for token in flat.split(b","):
        hexadecimal = _HEXADECIMAL.fullmatch(token) is not None
        if not hexadecimal and not _LARGE.fullmatch(token) and not _OF_INTEGERS.fullmatch(token):
            return None
        value = int(token, 16 if hexadecimal else 10)
        if not low <= value <= high:
            return None
        out.append(value.to_bytes(target.itemsize, "little", signed=target.kind == "i"))
    return b"".join(out)


def _round(values: np.ndarray[Any, np.dtype[np.float64]], dtype: str) -> bytes | None:
    """Doubles to nearest even of a type; None where one is or becomes infinite, or none."""
    import numpy as np

    target = numpy_dtype(dtype)
    with np.errstate(over="ignore", under="ignore"):
        out = (values if dtype in _WIDE else _to_odd(values)).astype(target)
        finite = np.isfinite(out.astype(np.float32 if dtype not in _WIDE else target)).all()
    return out.tobytes() if finite else None


def _to_odd(values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Doubles as floats, inexact ones with an odd last bit: rounding those to a type that is two bits shorter or more
    gives what rounding the doubles would (S. Boldo and G. Melquiond, "When double rounding is odd", 2005).
    """
    import numpy as np

    near = values.astype(np.float32)
    wide = near.astype(np.float64)
    toward = np.where(np.abs(wide) > np.abs(values), np.nextafter(near, np.float32(0)), near).astype(np.float32)
    bits = toward.view(np.uint32) | (wide != values)
    # A zero that was rounded to keeps the sign of its value.
    bits |= np.signbit(values).astype(np.uint32) << np.uint32(31)
    out: np.ndarray[Any, np.dtype[np.float32]] = bits.astype(np.uint32).view(np.float32)
    return out
