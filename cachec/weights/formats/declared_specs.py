"""What weights are expected to be, as the caller says: types for formats that have none, checked against all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from cachec.errors import CheckpointError, UsageError
from cachec.model import WeightSpec
from cachec.weights.dtypes import size_of
from cachec.weights.formats.presharded import World
from cachec.weights.manifest import Manifest
from cachec.weights.tensor import Tensor


def manifest_of(specs: Mapping[str, WeightSpec] | Manifest) -> Manifest:
    """The specs as a manifest. Raises UsageError for a spec under another name than its own."""
    if isinstance(specs, Manifest):
        return specs
    if not isinstance(specs, Mapping):
        raise UsageError(f"specs: expected a mapping name -> cachec.WeightSpec, or a manifest; found {specs!r}")
    for name, spec in specs.items():
        if not isinstance(spec, WeightSpec) or spec.name != name:
            raise UsageError(
                f"specs: {name!r} expected the spec of that name, cachec.WeightSpec(name={name!r}, dtype=, shape=, "
                f"nbytes=); found {spec!r}"
            )
    return Manifest.of(specs)


def given_axes(
    specs: Manifest, tensors: Mapping[str, Tensor], untyped: Callable[[Tensor], bool], place: World
) -> dict[str, int]:
    """The axes that specs give to tensors that are there in shards. A vector of bytes has none but 0."""
    axes: dict[str, int] = {}
    for name, spec in specs.weights.items():
        own = tensors.get(f"{name}_shard-{place.rank + 1}-of-{place.size}")
        if spec.shard is not None and own is not None and not untyped(own):
            axes[name] = spec.shard[0]
    return axes


def with_specs(
    label: str, tensors: Mapping[str, Tensor], untyped: Callable[[Tensor], bool], specs: Manifest
) -> dict[str, Tensor]:
    """The tensors with the types of ``specs``, where their format has none; names that no spec has stay as they are.

    Raises CheckpointError where a tensor is missing or is something else, UsageError for a spec that can't be.
    """
    typed = dict(tensors)
    for name, spec in specs.weights.items():
        nbytes = _checked_size(name, spec)
        tensor = tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{label}: missing tensor {name!r}, expected {_text(spec)} by specs=")
        if untyped(tensor):
            if tensor.nbytes != nbytes:
                raise CheckpointError(
                    f"{label}: tensor {name!r}: expected {nbytes} bytes for {_text(spec)} by specs=, found "
                    f"{tensor.nbytes} at offset {tensor.offset}"
                )
        elif (tensor.dtype, tensor.shape, tensor.layout) != (spec.dtype, spec.shape, spec.layout):
            raise CheckpointError(
                f"{label}: tensor {name!r}: expected {_text(spec)} by specs=, found {_text(tensor)} at offset "
                f"{tensor.offset}"
            )
        if tensor.shard is not None and (spec.shard is None or spec.shard[1] != tensor.shard[1]):
            wanted = f"{spec.shard[1]} shards" if spec.shard else "a whole weight"
            raise CheckpointError(
                f"{label}: tensor {name!r}: expected {wanted} by specs=, found one of {tensor.shard[1]} shards"
            )
        typed[name] = Tensor(
            spec.dtype, spec.shape, nbytes, tensor.offset, tensor.file, spec.shard or tensor.shard, spec.layout
        )
    return typed


def _checked_size(name: str, spec: WeightSpec) -> int:
    if any(dimension < 0 for dimension in spec.shape):
        raise UsageError(f"specs: weight {name!r}: expected a shape of integers from 0, found {list(spec.shape)}")
    nbytes = math.prod(spec.shape) * size_of(spec.dtype)
    if nbytes != spec.nbytes:
        raise UsageError(f"specs: weight {name!r}: {_text(spec)} takes {nbytes} bytes, the spec says {spec.nbytes}")
    return nbytes


def _text(what: WeightSpec | Tensor) -> str:
    layout = "" if what.layout == "row-major" else f" ({what.layout})"
    return f"{what.dtype} {list(what.shape)}{layout}"
