"""numpy arrays: the elements in C order as one raw artifact, mapped back in private pages: no write reaches the store.

The dtype is kept as numpy's type string with its byte order (``<f4``, ``>i2``, ``|b1``, ``<U8``, ``<M8[ns]``), or as
the name of an ml_dtypes type (``bfloat16``, ``float8_e4m3fn``). numpy is imported by these functions only.
"""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from cachec.base import fsio
from cachec.base.display_text import module_of
from cachec.codecs.base import corrupt, meta_of, open_artifact, unstorable
from cachec.model import Leaf
from cachec.store.artifacts import ArtifactSink, ArtifactSource

if TYPE_CHECKING:
    import numpy as np

#: The type strings that are stored. Long doubles are left out: their padding has any content. Records and objects too.
_TYPE_STRING: Final = (
    r"[<>|](b1|[iu][1248]|f[248]|c(8|16)|[US][1-9][0-9]{0,8}|[mM]8(\[[0-9]{0,9}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)"
)
_ML_NAME: Final = r"(bfloat16|u?int[0-9]+|float[0-9]+_[a-z0-9]+)"


class _ArrayMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    scalar: bool = False


def is_array(cls: type) -> bool:
    """Whether a class is ``numpy.ndarray``, ``numpy.memmap`` or a numpy scalar. Imports nothing."""
    if module_of(cls) not in {"numpy", "ml_dtypes"}:
        return False
    numpy = sys.modules.get("numpy")
    return numpy is not None and (cls is numpy.ndarray or cls is numpy.memmap or issubclass(cls, numpy.generic))


def encode_array(value: Any, sink: ArtifactSink, path: str) -> Leaf:
    """An array or scalar of numpy. Raises UnstorableResult for objects, records and long doubles."""
    import numpy as np

    dtype = value.dtype
    foreign = module_of(dtype.type) == "ml_dtypes"
    name = dtype.name if foreign else dtype.str
    if not re.fullmatch(_ML_NAME if foreign else _TYPE_STRING, name) or dtype.metadata:
        raise unstorable(
            value,
            path,
            "return its fields as arrays of numbers, in a dict or dataclass, or its bytes",
            f"an array of dtype {dtype}",
        )
    array = np.ascontiguousarray(value).reshape(-1)
    data = memoryview(array.view(np.uint8).data) if array.size else b""
    meta: dict[str, Any] = {"dtype": name, "shape": list(value.shape)}
    if isinstance(value, np.generic):
        meta["scalar"] = True
    return Leaf("array", (sink.add_bytes(data),), meta)


def decode_array(leaf: Leaf, source: ArtifactSource) -> Any:
    """The array over a private map of its artifact (or the scalar). Raises StoreFault."""
    import numpy as np

    meta = meta_of(leaf, _ArrayMeta)
    dtype = _dtype(meta.dtype)
    (ref,) = leaf.artifacts
    expected = math.prod(meta.shape) * dtype.itemsize
    if expected != ref.size:
        raise corrupt(f"an array {meta.dtype}{list(meta.shape)} takes {expected} bytes, its artifact has {ref.size}")
    with fsio.closing(open_artifact(source.path(ref), ref)) as fd:
        view = fsio.map_private(fd, 0, ref.size) if ref.size else None
    try:
        array: np.ndarray[Any, Any] = np.ndarray(meta.shape, dtype, buffer=view)
    except (ValueError, OverflowError) as error:  # too many dimensions, or a dimension beyond the address space
        raise corrupt(f"an array {meta.dtype}{list(meta.shape)}: {error}") from error
    if meta.scalar:
        if meta.shape:
            raise corrupt(f"a scalar has no shape, found {list(meta.shape)}")
        return array[()]
    return array


def _dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    if re.fullmatch(_TYPE_STRING, name):
        try:
            return np.dtype(name)
        except TypeError as error:  # an invalid unit of time
            raise corrupt(f"unknown dtype {name!r}") from error
    if re.fullmatch(_ML_NAME, name):
        import ml_dtypes

        scalar = getattr(ml_dtypes, name, None)
        if isinstance(scalar, type) and issubclass(scalar, np.generic):
            return np.dtype(scalar)
    raise corrupt(f"unknown dtype {name!r}")
