"""Conversion of models to programs: most initialisers become weights by name, the others stay by value."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from cachec.base.display_text import nearest
from cachec.errors import PluginError, UnknownWeight
from cachec.model import WeightSpec
from cachec.programs.program import Program
from cachec.weights import WeightSet, open_weights
from cachec.weights.dtypes import SIZES
from cachec.weights.formats.onnx import DTYPES
from cachec.weights.manifest import Folded, Manifest
from cachec_onnxruntime.kinds import FORMAT
from cachec_onnxruntime.onnx_models import Initializer, initializers, initializers_to_inputs, shape_inputs

if TYPE_CHECKING:
    import onnx

#: Element types of axes, shapes, indices and conditions.
_INTEGERS = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})


def strip_model(
    model: str | os.PathLike[str] | onnx.ModelProto, weights: WeightSet | None, constants: Iterable[str] | str | None
) -> Program:
    """See ``cachec_onnxruntime.strip``."""
    if isinstance(model, str | os.PathLike):
        with open(model, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise PluginError(f"{os.fspath(model)} is no ONNX model: it is empty")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        open_external: Callable[[], WeightSet] | None = lambda: open_weights(model)  # noqa: E731 - only where it is needed
    else:
        data, open_external = memoryview(model.SerializeToString()), None
    there = initializers(data)
    staying = _constants(data, there, constants)
    specs = _specs(there, weights, staying)
    folded: dict[str, tuple[str, ...]] = {}

    def value(name: str) -> memoryview | None:
        if weights is not None and name in weights:
            _check(there[name], weights[name].spec)
            folded[name] = (weights[name].content(),)
            return weights[name].raw()
        if there[name].is_external and open_external is not None:
            return open_external()[name].raw()
        return None

    ir = initializers_to_inputs(data, there, frozenset(specs), value)
    return Program(ir, format=FORMAT, manifest=_manifest(specs, folded, weights))


def needed_by_value(model: memoryview, there: Mapping[str, Initializer]) -> set[str]:
    """Return the names of the initialisers that stay in the program by value.

    Optimisations and shape inference read their values, and training does not change them; or no weight can have their
    type.
    """
    return {name for name, each in there.items() if _is_constant(each)} | (shape_inputs(model) & there.keys())


def _is_constant(each: Initializer) -> bool:
    dtype = DTYPES.get(each.data_type)
    return dtype is None or not each.shape or (dtype in _INTEGERS and len(each.shape) < 2)


def _manifest(specs: dict[str, WeightSpec], folded: Folded, weights: WeightSet | None) -> Manifest:
    manifest = Manifest.of(specs) if weights is None else weights.select(list(specs)).manifest
    return manifest.folding(folded)


def _specs(
    there: dict[str, Initializer], weights: WeightSet | None, staying: Callable[[Initializer], bool]
) -> dict[str, WeightSpec]:
    """Return the specs of the initialisers that become weights. Raises PluginError, UnknownWeight."""
    if weights is not None:
        for name in weights:
            if name not in there:
                near = nearest(name, there)
                raise UnknownWeight(
                    f"the model has no initializer {name!r}" + (f"; did you mean {near!r}?" if near else "")
                )
    specs = {}
    for name, each in there.items():
        if (weights is None or name in weights) and not staying(each):
            specs[name] = _spec(each)
            if weights is not None:
                _check(each, weights[name].spec)
    return specs


def _constants(
    model: memoryview, there: dict[str, Initializer], constants: Iterable[str] | str | None
) -> Callable[[Initializer], bool]:
    """Return a function that decides whether an initialiser stays by value."""
    if constants is None:
        by_value = needed_by_value(model, there)
        return lambda each: each.name in by_value
    patterns = (constants,) if isinstance(constants, str) else tuple(constants)
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in there):
            raise UnknownWeight(f"constants: no initializer of the model matches {pattern!r}")
    return lambda each: each.data_type not in DTYPES or any(_matches(each.name, pattern) for pattern in patterns)


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def _spec(each: Initializer) -> WeightSpec:
    dtype = DTYPES[each.data_type]
    if any(size >> 63 for size in each.shape):
        raise PluginError(f"initializer {each.name!r} has no shape: {list(each.shape)}")
    return WeightSpec(name=each.name, dtype=dtype, shape=each.shape, nbytes=math.prod(each.shape) * SIZES[dtype])


def _check(each: Initializer, given: WeightSpec) -> None:
    expected = (DTYPES.get(each.data_type), each.shape)
    if expected != (given.dtype, given.shape):
        raise PluginError(
            f"weight {each.name!r}: the model expects {expected[0]} {list(each.shape)}, found {given.dtype} "
            f"{list(given.shape)}"
        )
