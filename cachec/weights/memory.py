"""Weights that are made from values in memory, or stated by specs: what is accepted, and how it is described."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from cachec.errors import UsageError
from cachec.model import WeightSpec
from cachec.weights.arrays import describe
from cachec.weights.dtypes import BLOCKS, size_of
from cachec.weights.formats.safetensors import Tensor
from cachec.weights.layout import Ties, checked_name
from cachec.weights.sources import Buffer


def buffers_of(arrays: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Buffer]]:
    """Tensors and read-only bytes of arrays of any library and of ``(bytes-like, WeightSpec)`` pairs, by reference.

    Raises UsageError naming the weight, what was expected and what was found.
    """
    tensors: dict[str, Tensor] = {}
    buffers: dict[str, Buffer] = {}
    for name, value in arrays.items():
        checked_name(name, "from_arrays")
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], WeightSpec):
            tensors[name], buffers[name] = _of_bytes(name, *value)
        else:
            dtype, shape, buffer = describe(name, value)
            tensors[name], buffers[name] = Tensor(dtype, shape, buffer.view.nbytes, 0), buffer
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
