"""One tensor: its type, and where its bytes are."""

from __future__ import annotations

import math

import msgspec

from cachec.errors import UsageError
from cachec.model import ROW_MAJOR, WeightSpec
from cachec.weights.dtypes import BLOCKS, size_of


class Tensor(msgspec.Struct, frozen=True, gc=False):
    """One tensor of a checkpoint: its type and where its bytes are."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    #: From the start of that file, in bytes.
    offset: int
    #: The number of its file within the opened source; below 0 for bytes that no file holds (see ``formats/base.py``).
    file: int = 0
    shard: tuple[int, int] | None = None
    #: As in ``WeightSpec``.
    layout: str = ROW_MAJOR


def checked_tensor(name: str, spec: WeightSpec, available: int, where: str, number: int = 0) -> Tensor:
    """The tensor that a spec describes. Raises UsageError unless name, dtype, shape, nbytes and ``available`` agree."""
    if spec.name != name:
        raise UsageError(f"weight {name!r} was given the spec of {spec.name!r}")
    nbytes = math.prod(spec.shape) * size_of(spec.dtype)
    known = spec.layout == "row-major" or (spec.layout.startswith(BLOCKS) and spec.dtype == "uint8")
    if not known or any(dimension < 0 for dimension in spec.shape):
        raise UsageError(f"weight {spec.name!r}: expected a row-major shape, found {spec.layout} {list(spec.shape)}")
    if not nbytes == spec.nbytes == available:
        raise UsageError(
            f"weight {spec.name!r}: {spec.dtype} {list(spec.shape)} takes {nbytes} bytes, the spec says {spec.nbytes}, "
            f"{where} has {available}"
        )
    return Tensor(spec.dtype, spec.shape, nbytes, 0, number, spec.shard, spec.layout)
