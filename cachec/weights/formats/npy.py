"""numpy's .npy (numpy/lib/_format_impl.py), mapped in place.

    .npy    "\\x93NUMPY", u8 major, u8 minor, header length (u16 in version 1, u32 in 2 and 3), header, data
            header: a Python literal {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}

The weight of a .npy is named like the file without its suffix. Refused, each with its way out: pickled objects,
structured and untyped elements, big-endian values, column-major order in two or more dimensions, extra bytes.
"""

from __future__ import annotations

import os

from cachec.weights.dtypes import SIZES
from cachec.weights.formats.base import CheckpointFile, Contents, Opener, size_in_bytes
from cachec.weights.tensor import Tensor

_MAGIC = b"\x93NUMPY"
#: numpy refuses to evaluate more (``max_header_size``).
_MAX_HEADER = 10_000
_KEYS = {"descr", "fortran_order", "shape"}

_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex"}
#: descr without its byte order -> dtype.
_DESCR = {"b1": "bool"} | {
    f"{letter}{size}": f"{kind}{8 * size}"
    for letter, kind in _KINDS.items()
    for size in (1, 2, 4, 8, 16)
    if f"{kind}{8 * size}" in SIZES
}


def read(path: str, opener: Opener) -> Contents:
    """The array of a .npy file. Raises CheckpointError."""
    name = os.path.basename(path).removesuffix(".npy")
    return Contents({name: array_at(opener.main, name, 0, opener.main.size)})


def array_at(file: CheckpointFile, name: str, start: int, available: int) -> Tensor:
    """The array that takes exactly ``available`` bytes from offset ``start``."""
    if available < 10:
        raise file.bad(name, "at least 10 bytes", f"{available}: truncated")
    prefix = file.at(start, min(12, available), f"tensor {name!r}")
    major, minor = prefix[6], prefix[7]
    if not prefix.startswith(_MAGIC) or (major, minor) not in {(1, 0), (2, 0), (3, 0)}:
        raise file.bad(name, "the magic b'\\x93NUMPY' and version 1.0, 2.0 or 3.0", prefix[:8])
    width = 2 if major == 1 else 4
    begin = 8 + width
    length = int.from_bytes(prefix[8:begin], "little")
    if length > _MAX_HEADER or begin + length > available:
        limit = min(_MAX_HEADER, available - begin)
        raise file.bad(name, f"a header of at most {limit} bytes", f"{length}: truncated, or malformed")
    text = file.at(start + begin, length, f"tensor {name!r}")
    descr, fortran, shape = _header(file, name, text, major)
    dtype = _dtype(file, name, descr)
    nbytes = size_in_bytes(file, name, dtype, shape)
    offset = start + begin + length
    if nbytes != available - begin - length:
        raise file.bad(
            name,
            f"{nbytes} bytes for {dtype} of shape {list(shape)}",
            f"{available - begin - length} at offset {offset}",
        )
    if fortran and sum(dimension != 1 for dimension in shape) > 1 and nbytes:
        raise file.bad(
            name, "row-major order", "column-major (fortran_order); save numpy.ascontiguousarray(array) instead"
        )
    return Tensor(dtype, shape, nbytes, offset)


def _header(file: CheckpointFile, name: str, text: bytes, major: int) -> tuple[str, bool, tuple[int, ...]]:
    import ast

    try:
        # As numpy does, nothing stripped: what counts as white space there differs from Python's syntax.
        header = ast.literal_eval(text.decode("utf8" if major == 3 else "latin1"))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise file.bad(name, "a header that is a Python literal", repr(text[:80])) from error
    if not isinstance(header, dict) or set(header) != _KEYS:
        raise file.bad(name, f"a header with the keys {sorted(_KEYS)}", repr(header)[:80])
    descr, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
    if type(fortran) is not bool:
        raise file.bad(name, "fortran_order True or False", repr(fortran)[:80])
    if type(shape) is not tuple or any(type(dimension) is not int for dimension in shape):
        raise file.bad(name, "a shape that is a tuple of integers", repr(shape)[:80])
    if type(descr) is not str:
        raise file.bad(name, "elements of one plain type", f"a structured type {repr(descr)[:80]}")
    return descr, fortran, shape


def _dtype(file: CheckpointFile, name: str, descr: str) -> str:
    order, code = (descr[0], descr[1:]) if descr[:1] in {"<", ">", "|", "="} else ("", descr)
    if code.startswith("O"):
        raise file.bad(name, "numbers", "pickled objects, which are never loaded")
    if code.startswith("V"):
        raise file.bad(
            name,
            "a typed array",
            f"untyped elements {descr!r} (so numpy saves bfloat16 and fp8); save it as safetensors",
        )
    dtype = _DESCR.get(code)
    if dtype is None:
        raise file.bad(name, f"a type of {', '.join(sorted(_DESCR))}", repr(descr)[:80])
    if SIZES[dtype] > 1 and order != "<":
        raise file.bad(
            name, "little-endian values", f"{descr!r}; save array.astype(array.dtype.newbyteorder('<')) instead"
        )
    return dtype
