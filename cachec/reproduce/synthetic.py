"""Weights that a seed stands for: of the right names, shapes and types, with the same bytes on every machine.

The generator, version 1. Element ``i`` of weight NAME under SEED is made of the word

    u = bytes 4i to 4i+3, little-endian, of BLAKE3(b"cachec synthetic 1\\0" + SEED (u64, little-endian) + NAME (UTF-8))
        in its extendable-output mode (BLAKE3 paper, section 2.6)

    floats            (u - 2**31) / 2**31 / 2**k, rounded to the type (nearest, ties to even); k is half the bit length
                      of the product of all dimensions but the first, so that activations keep their size
    complex           the same for real and imaginary part, two words an element
    float8_e8m0fnu    the byte 120 + u % 8 (it has powers of two alone)
    integers          u % 4: small, and in range where they are an index
    bool              u % 2

Tied weights are made under the name that they are tied to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from cachec.model import WeightSpec
from cachec.weights import WeightSet
from cachec.weights.dtypes import numpy_dtype
from cachec.weights.layout import stated_ties

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

SEED = 0
_DOMAIN = b"cachec synthetic 1\0"
#: Elements made at once.
_STEP = 1 << 22


def synthetic_weights(specs: Mapping[str, WeightSpec], seed: int = SEED) -> WeightSet:
    """A weight set in memory with these specs. Raises UsageError for a spec that no weight can have."""
    made: dict[str, Any] = {}
    for name, spec in specs.items():
        made[name] = (made[spec.alias][0] if spec.alias in made else synthetic(spec, seed), spec)
    return WeightSet.from_arrays(made, tied=stated_ties(specs.values()))


def synthetic(spec: WeightSpec, seed: int = SEED) -> memoryview:
    """The bytes of one weight, row-major and little-endian."""
    import numpy as np

    dtype = numpy_dtype(spec.dtype)
    out = np.empty(math.prod(spec.shape), dtype)
    words = 2 if dtype.kind == "c" else 1
    source = blake3(_DOMAIN + seed.to_bytes(8, "little") + (spec.alias or spec.name).encode())
    shift = math.prod(spec.shape[1:]).bit_length() // 2
    for start in range(0, out.size, _STEP):
        count = min(_STEP, out.size - start)
        data = source.digest(length=4 * words * count, seek=4 * words * start)
        u = np.frombuffer(data, "<u4")
        out[start : start + count] = _elements(u, spec.dtype, dtype, shift)
    view: Any = out.view(np.uint8)
    return memoryview(view).toreadonly()


def _elements(u: Array, name: str, dtype: np.dtype[Any], shift: int) -> Array:
    import numpy as np

    if name == "float8_e8m0fnu":
        return (120 + u % 8).astype(np.uint8).view(dtype)
    if dtype.kind == "b":
        return (u % 2).astype(dtype)
    if dtype.kind in "iu":
        return (u % 4).astype(dtype)
    values = (u.astype(np.float64) - 2.0**31) / 2.0 ** (31 + shift)
    if dtype.kind == "c":
        return (values[0::2] + 1j * values[1::2]).astype(dtype)
    return values.astype(dtype)
