"""Weights that are made from values in memory, or stated by specs: what is accepted, and how it is described."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from cachec.errors import UsageError
from cachec.model import WeightSpec
from cachec.weights.dtypes import BLOCKS, SIZES, size_of
from cachec.weights.layout import Ties
from cachec.weights.safetensors import Tensor
from cachec.weights.sources import Buffer


def buffers_of(arrays: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Buffer]]:
    """Tensors and read-only bytes of numpy arrays and of ``(bytes-like, WeightSpec)`` pairs, by reference.

    Raises UsageError naming the weight, what was expected and what was found.
    """
    tensors: dict[str, Tensor] = {}
    buffers: dict[str, Buffer] = {}
    for name, value in arrays.items():
        if not isinstance(name, str) or not name:
            raise UsageError(f"from_arrays: expected a name, found {name!r}")
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], WeightSpec):
            tensors[name], buffers[name] = _of_bytes(name, *value)
        else:
            tensors[name], buffers[name] = _of_array(name, value)
    return tensors, buffers


def checked_tensor(name: str, spec: WeightSpec, found: int, where: str, number: int = 0) -> Tensor:
    """The tensor that a spec describes. Raises UsageError unless name, dtype, shape, nbytes and ``found`` agree."""
    if spec.name != name:
        raise UsageError(f"weight {name!r} was given the spec of {spec.name!r}")
    nbytes = math.prod(spec.shape) * size_of(spec.dtype)
    known = spec.layout == "row-major" or (spec.layout.startswith(BLOCKS) and spec.dtype == "uint8")
    if not known or any(dimension < 0 for dimension in spec.shape):
        raise UsageError(f"weight {spec.name!r}: expected a row-major shape, found {spec.layout} {list(spec.shape)}")
    if not nbytes == spec.nbytes == found:
        raise UsageError(
            f"weight {spec.name!r}: {spec.dtype} {list(spec.shape)} takes {nbytes} bytes, the spec says {spec.nbytes}, "
            f"{where} has {found}"
        )
    return Tensor(spec.dtype, spec.shape, nbytes, 0, number, spec.shard, spec.layout)


def stated_ties(specs: Iterable[WeightSpec]) -> Ties:
    """The groups of tied names that the specs state by their aliases, the first member first."""
    groups: dict[str, list[str]] = {}
    for spec in specs:
        if spec.alias is not None:
            groups.setdefault(spec.alias, []).append(spec.name)
    return tuple(
        (alias, *sorted(name for name in names if name != alias)) for alias, names in groups.items() if alias in names
    )


def _of_bytes(name: str, data: Any, spec: WeightSpec) -> tuple[Tensor, Buffer]:
    try:
        view = memoryview(data)
    except TypeError as error:
        raise UsageError(f"weight {name!r}: expected a bytes-like object, found {type(data).__name__}") from error
    if not view.c_contiguous:
        raise UsageError(f"weight {name!r}: expected contiguous bytes")
    tensor = checked_tensor(name, spec, view.nbytes, f"the {type(data).__name__}")
    flat = view.cast("B").toreadonly() if view.nbytes else memoryview(b"")
    return tensor, Buffer(flat, type(data) is bytes)


def _of_array(name: str, value: Any) -> tuple[Tensor, Buffer]:
    import numpy as np

    if not isinstance(value, np.ndarray | np.generic):
        raise UsageError(
            f"weight {name!r}: expected a numpy array or (bytes-like, WeightSpec), found {type(value).__name__}; "
            "use numpy.asarray"
        )
    array = np.asarray(value)
    dtype = array.dtype
    if dtype.name not in SIZES:
        raise UsageError(f"weight {name!r}: dtype {dtype.name} can't be a weight; expected one of {', '.join(SIZES)}")
    native = dtype.byteorder in {"|", "="} or dtype.itemsize == 1
    if not native or sys.byteorder != "little":
        raise UsageError(f"weight {name!r}: expected little-endian bytes, found dtype {dtype.str}; use .astype")
    if not array.flags.c_contiguous:
        raise UsageError(f"weight {name!r}: expected a row-major array; use numpy.ascontiguousarray")
    # Through a read-only memoryview, so that nobody can make an array over it writable again.
    flat = array.reshape(-1).view(np.uint8).data.toreadonly() if array.nbytes else memoryview(b"")
    return Tensor(dtype.name, array.shape, array.nbytes, 0), Buffer(flat, fixed=False)
