"""Element types of weights: the names that safetensors uses, the names that cachec uses, their sizes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cachec.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

#: dtype in a safetensors header -> (name of the numpy or ml_dtypes scalar type, bytes an element).
#: Source: the README of huggingface/safetensors and the enum ``Dtype`` of its 0.8 reader.
SAFETENSORS: dict[str, tuple[str, int]] = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
    "I16": ("int16", 2),
    "U16": ("uint16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I32": ("int32", 4),
    "U32": ("uint32", 4),
    "F32": ("float32", 4),
    "C64": ("complex64", 8),
    "F64": ("float64", 8),
    "I64": ("int64", 8),
    "U64": ("uint64", 8),
}

#: Types that pack several elements into a byte. numpy has no array of them, so their bytes can't be handed out.
PACKED = frozenset({"F4", "F6_E2M3", "F6_E3M2"})

#: How layouts of quantised blocks begin: ``gguf:q8_0`` in uint8, the innermost dimension being their bytes.
BLOCKS = "gguf:"

#: Bytes an element, by cachec's name: everything that a weight may be made of.
SIZES: dict[str, int] = dict(SAFETENSORS.values()) | {"complex128": 16}


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy dtype of a weight's dtype name, little-endian. Imports numpy, and ml_dtypes for bf16 and fp8."""
    import numpy as np

    if name.startswith(("bfloat", "float8")):
        import ml_dtypes

        scalar: type[np.generic] = getattr(ml_dtypes, name)
        return np.dtype(scalar)
    dtype = np.dtype(name)
    return dtype if sys.byteorder == "little" else dtype.newbyteorder("<")


def size_of(dtype: str) -> int:
    """Bytes an element. Raises UsageError for a type that no weight can have."""
    size = SIZES.get(dtype)
    if size is None:
        raise UsageError(f"dtype {dtype!r} can't be a weight; expected one of {', '.join(sorted(SIZES))}")
    return size
