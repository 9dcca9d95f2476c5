"""JAX arrays in keys and in the store. Imports JAX, so it is imported for a value of JAX only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import ml_dtypes
import msgspec
import numpy as np

from cachec.base.hashing import Hasher
from cachec.errors import PluginError, UnstorableValue, UnusableHere
from cachec.programs.plugin import ArtifactWriter, Fingerprint
from cachec_jax import internals

#: Below this number of bytes, a copy costs less than a view.
_SMALL = 4096


class _JaxArrayMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The meta data of a stored array."""

    dtype: str
    shape: list[Annotated[int, msgspec.Meta(ge=0)]]
    #: Whether its type is weak.
    weak: bool


def fingerprint(value: Any) -> Fingerprint:
    """See JaxPlugin.fingerprint. Raises PluginError for an array that this process has only in part."""
    hasher = Hasher("jax")
    if isinstance(value, jax.stages.Lowered):
        from cachec_jax.callbacks import refuse_lowered

        refuse_lowered(value)
        text = value.as_text()
        hasher.part("lowered", text.encode())
        hasher.part("signature", str(value.in_tree).encode())
        return Fingerprint(hasher.digest(), f"Lowered, {len(text)} characters of StableHLO")
    hasher.part("kind", b"abstract" if isinstance(value, jax.ShapeDtypeStruct) else b"array")
    hasher.part("dtype", str(value.dtype).encode())
    hasher.part("shape", repr(tuple(value.shape)).encode())
    for dimension in value.shape:
        if not isinstance(dimension, int):
            hasher.part("constraints", internals.symbolic_constraints(dimension).encode())
    hasher.part("weak", repr(bool(getattr(value, "weak_type", False))).encode())
    hasher.part("sharding", repr(getattr(value, "sharding", None)).encode())
    if not isinstance(value, jax.ShapeDtypeStruct):
        hasher.part("committed", repr(bool(getattr(value, "committed", False))).encode())
        hasher.part("data", _bytes(value))
    nbytes = 0 if isinstance(value, jax.ShapeDtypeStruct) else value.nbytes
    return Fingerprint(hasher.digest(), f"{value.dtype}[{','.join(map(str, value.shape))}]", nbytes)


def encode(value: Any, out: ArtifactWriter) -> dict[str, Any]:
    if not isinstance(value, jax.Array) or _is_key(value):
        kind = type(value).__qualname__
        raise UnstorableValue(f"a {kind} can't be stored; return arrays (of a PRNG key, its key_data)")
    if len(value.sharding.device_set) != 1:
        raise UnstorableValue(
            f"an array on {len(value.sharding.device_set)} devices can't be stored; gather it first, or return numpy"
        )
    out.write(_bytes(value))
    return {"dtype": str(value.dtype), "shape": list(value.shape), "weak": bool(value.weak_type)}


def decode(meta: Mapping[str, Any], artifacts: Sequence[Path]) -> Any:
    try:
        name, shape, weak = msgspec.structs.astuple(msgspec.convert(dict(meta), _JaxArrayMeta))
    except msgspec.ValidationError as error:
        raise PluginError(f"a stored jax.Array has malformed meta data: {error}") from error
    if len(artifacts) != 1:
        raise PluginError(f"a stored jax.Array has {len(artifacts)} artifacts, expected one")
    dtype = _dtype(name)
    data = artifacts[0].read_bytes()
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise PluginError(f"a stored {name}{shape} has {len(data)} bytes, not {math.prod(shape) * dtype.itemsize}")
    array = jnp.asarray(np.frombuffer(data, dtype).reshape(shape))
    if array.dtype != dtype:
        raise UnusableHere(f"a stored {name} array would become {array.dtype} here: jax_enable_x64 is off")
    return _with_weak_type(array) if weak else array


def compare(fresh: Any, stored: Any) -> str | None:
    """See JaxPlugin.compare. Tolerance: 8 units in the last place of the largest magnitude, NaN equal to NaN."""
    if fresh.shape != stored.shape or fresh.dtype != stored.dtype:
        return f"{fresh.dtype}{list(fresh.shape)} against {stored.dtype}{list(stored.shape)}"
    if fresh.weak_type != stored.weak_type:
        return f"weak_type={fresh.weak_type} against {stored.weak_type}"  # it decides the types of results
    if not jnp.issubdtype(fresh.dtype, jnp.inexact):
        same = bool(np.array_equal(np.asarray(fresh), np.asarray(stored)))
        return None if same else "the integers differ"
    wide = np.complex128 if jnp.issubdtype(fresh.dtype, jnp.complexfloating) else np.float64
    a, b = np.asarray(fresh).astype(wide), np.asarray(stored).astype(wide)
    if a.size == 0:
        return None
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "NaN or infinity in different places"
    error = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    allowed = 8 * float(jnp.finfo(fresh.dtype).eps) * float(np.abs(b[finite]).max(initial=0.0))
    return None if error <= allowed else f"largest difference {error:.3g}, allowed {allowed:.3g}"


def reduce_array(value: Any) -> Any:
    """See JaxPlugin.reduce."""
    if _is_key(value) or not value.is_fully_addressable or len(value.sharding.device_set) != 1:
        return NotImplemented
    return rebuild_array, (_flat(value), str(value.dtype), value.shape, bool(value.weak_type))


def rebuild_array(data: Any, name: str, shape: tuple[int, ...], weak: bool) -> Any:
    """Return the array of the bytes. Raises PluginError if it would have another type here."""
    dtype = _dtype(name)
    array = jax.device_put(data.view(dtype).reshape(shape))
    if array.dtype != dtype:
        raise PluginError(f"an array of {dtype} would become {array.dtype} here: jax_enable_x64 is off")
    return _with_weak_type(array) if weak else array


def _flat(value: Any) -> np.ndarray[Any, Any]:
    """Return the bytes of an array as they are in memory."""
    return np.asarray(value).reshape(-1).view(np.uint8)


def _bytes(value: Any) -> bytes | memoryview:
    if not value.is_fully_addressable:
        raise UnstorableValue("this process sees only a part of an array; pass or return what is local to the process")
    if _is_key(value):
        value = jax.random.key_data(value)
    flat = _flat(value)
    return flat.tobytes() if flat.nbytes < _SMALL else flat.data


def _is_key(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError as error:
        raise PluginError(f"a stored jax.Array has the unknown dtype {name!r}") from error


def _with_weak_type(array: Any) -> Any:
    """Return the array with a weak type, as of results of Python scalars (JAX has no public function for this)."""
    from cachec_jax.internals import lax

    weak = lax._convert_element_type(array, array.dtype, weak_type=True)
    if not weak.weak_type or weak.dtype != array.dtype:
        raise PluginError(f"a weakly typed {array.dtype} array can't be made in this version of JAX")
    return weak
