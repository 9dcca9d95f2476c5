"""One weight of a set: a handle through which every look at its bytes goes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cachec.base.hashing import FileDigests
from cachec.errors import UsageError
from cachec.model import WeightSpec
from cachec.weights.layout import Layout
from cachec.weights.manifest import content_of
from cachec.weights.sources import Extent, Origin, Source, TensorPlace, Ways
from cachec.weights.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np


class Weight:
    """One named tensor. Getting at its bytes is explicit, checked, and recorded where a stage was given it."""

    __slots__ = ("_layout", "_source", "_there", "name")

    def __init__(self, name: str, layout: Layout, source: Source, there: str) -> None:
        """there: its name within ``source``."""
        self.name = name
        self._layout = layout
        self._source = source
        self._there = there

    @property
    def spec(self) -> WeightSpec:
        """Everything about it but the bytes."""
        return self._layout.spec(self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Local shape, after sharding."""
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        """The name of the numpy or ml_dtypes scalar type."""
        return self.tensor.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return self.tensor.nbytes

    @property
    def tensor(self) -> Tensor:
        """Type and place, for what composes weights."""
        return self._layout.tensors[self.name]

    def digest(self, digests: FileDigests | None = None) -> str:
        """BLAKE3 of the bytes, 64 hexadecimal characters; counts as a read.

        digests: where digests of files are remembered, under its own rule. Raises as ``read`` does.
        """
        return self._source.digest(self._there, self.tensor, digests)

    def content(self, digests: FileDigests | None = None) -> str:
        """The digest with the type and the shape: what ``Manifest.folded`` has of a weight. Counts as a read."""
        return content_of(self.spec, self.digest(digests))

    def raw(self) -> memoryview:
        """The bytes, row-major and little-endian, read-only; numpy is not imported. Raises as ``read`` does."""
        return self.expose().view()

    def read(self) -> np.ndarray[Any, np.dtype[Any]]:
        """A read-only array over the bytes in place (bf16 and fp8 by ml_dtypes); it outlives the set.

        Raises WeightReadError for a placeholder, WeightsChanged for a file that is not the one that was opened,
        HandleClosed after the stage returned or the set was released.
        """
        return _array(self.raw(), self.tensor)

    def private(self) -> np.ndarray[Any, np.dtype[Any]]:
        """A writable array of private copy-on-write pages: writing to it changes no file and no other array."""
        return _array(self.expose().private(), self.tensor)

    def place(self) -> TensorPlace | None:
        """Path, offset and size of the bytes in their file, for a runtime that maps it by itself; None for memory.

        Counts as a read of all of the weight. Where ``offset`` is not aligned as the runtime needs, use ``raw``. None
        inside a stage too: its key holds what the bytes are, and never where they lie.
        """
        extent = self.extent()
        return None if extent is None else TensorPlace(Path(extent.file.path), extent.offset, extent.nbytes)

    def extent(self) -> Extent | None:
        """The bytes as a range of an open file; None where there is only ``raw``, as inside a stage.

        Counts as a read of all of them.
        """
        ways = self.expose()
        return ways.extent() if self._source.tells_place(self._there) else None

    def expose(self) -> Ways:
        """The ways to the bytes, for one look; counts as a read of all of them. Raises as ``read`` does."""
        self._source.expose(self._there, self.tensor, None)
        return self.ways()

    def ways(self) -> Ways:
        """The same for what looks ahead, or composes weights: counts as nothing."""
        return self._source.ways(self._there, self.tensor)

    def torch(self) -> Any:
        """A ``torch.Tensor`` over private copy-on-write pages, for torch ignores read-only. Imports torch."""
        import torch

        tensor = self.tensor
        dtype = getattr(torch, tensor.dtype, None)
        if dtype is None:
            raise UsageError(f"weight {self.name!r}: this torch has no dtype {tensor.dtype}")
        data = self.expose().private()
        if tensor.nbytes == 0:
            return torch.empty(tensor.shape, dtype=dtype)
        return torch.frombuffer(data, dtype=dtype).reshape(tensor.shape)

    def jax(self) -> Any:
        """A ``jax.Array`` of the values (64-bit types become 32-bit ones unless ``jax_enable_x64``). Imports jax."""
        import jax.numpy as jnp

        return jnp.asarray(self.read())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        """For ``numpy.asarray``: ``read()``, converted or copied as asked."""
        import numpy as np

        values = self.read()
        if dtype is not None and np.dtype(dtype) != values.dtype:
            if copy is False:
                raise ValueError(f"weight {self.name!r} is {values.dtype}; as {np.dtype(dtype)} it has to be copied")
            return values.astype(dtype)
        return values.copy() if copy else values

    def __buffer__(self, flags: int) -> memoryview:
        """For ``memoryview`` and C (Python 3.12): a read-only typed view. Raises BufferError for bf16 and fp8."""
        try:
            return self.read().data
        except (ValueError, TypeError) as error:  # numpy has no buffer format for the types of ml_dtypes
            raise BufferError(f"weight {self.name!r}: no buffer format for {self.dtype}; use raw()") from error

    def __dlpack__(self, **how: Any) -> Any:
        """For ``from_dlpack``: private copy-on-write pages, as consumers write in spite of the read-only flag.

        Raises BufferError for bf16 and fp8, which numpy can't export.
        """
        return self.private().__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU: device type 1, number 0 (DLPack's ``kDLCPU``)."""
        return 1, 0

    def within(self) -> tuple[Source, str]:
        """The source behind it and its name there, for what composes weights."""
        return self._source, self._there

    def origin(self) -> Origin | None:
        """Which caller's weight this is, for one that a stage was given: argument path and name there."""
        return self._source.origin(self._there)

    def unguard(self, callers: Callers) -> Weight:
        """The same after the stage that it comes from has returned: the caller's own, where it is one of those.

        callers: the weight sets that the stage was given, by argument path.
        """
        origin = self.origin()
        if origin is None:
            source = self._source
            return source.unguard(self, self._there, callers) if isinstance(source, MadeOfWeights) else self
        caller = callers.get(origin[0])
        return self if caller is None else caller[origin[1]]

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"weight {self.name!r} is a handle and can't be pickled or copied; pass the path and open it there, "
            "or copy its values: weight.read().copy()"
        )

    def __repr__(self) -> str:
        return f"Weight({self.name!r}, {self.dtype}, {list(self.shape)})"


Callers = Mapping[str, Mapping[str, Weight]]


class MadeOfWeights(Source):
    """Base of the sources whose bytes come from other weights, which may be those that a stage was given."""

    def unguard(self, weight: Weight, there: str, callers: Callers) -> Weight:
        """``weight``, which is ``there`` in here, as it is to be used after the stage that made it has returned.

        callers: the weight sets that the stage was given, by argument path, unguarded.
        """
        raise NotImplementedError


def _array(data: memoryview, tensor: Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    import numpy as np

    from cachec.weights.dtypes import numpy_dtype

    dtype = numpy_dtype(tensor.dtype)
    if tensor.nbytes == 0:
        return np.ndarray(tensor.shape, dtype, buffer=data)
    # Not ndarray(buffer=...): it looks through the read-only view, to memory that could be made writable again.
    return np.frombuffer(data, dtype).reshape(tensor.shape)
