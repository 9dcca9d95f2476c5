"""Weights that are a part of a larger one, or a padded one: slices along an axis, zeros where there is nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from cachec.base.hashing import FileDigests, Hasher, digest_bytes
from cachec.weights.formats.safetensors import Tensor
from cachec.weights.layout import Layout
from cachec.weights.moving.spans import Spans, copy_spans, read_spans, within_spans
from cachec.weights.sources import Extent, Origin, Place, Ranges
from cachec.weights.weight import Weight
from cachec.weights.wrapping import ComposedSource

if TYPE_CHECKING:
    from cachec.weights.sets import WeightSet

_ZEROS = 1 << 20


class Part(NamedTuple):
    """What one weight is made of: the pieces ``spans`` of ``weight``, in ``nbytes`` bytes that are zero elsewhere."""

    weight: Weight
    spans: Spans
    nbytes: int

    @property
    def in_place(self) -> bool:
        """Whether the part is one extent of the weight: it is then handed out where it lies."""
        return self.spans.number == 1 and self.spans.width == self.nbytes

    def tensor(self, shape: tuple[int, ...], shard: tuple[int, int] | None) -> Tensor:
        """The part as a tensor: in place, where its bytes lie; otherwise from 0 of the bytes that are put together."""
        whole = self.weight.tensor
        place = (whole.offset + self.spans.first, whole.file) if self.in_place else (0, whole.file)
        return Tensor(whole.dtype, shape, self.nbytes, *place, shard, whole.layout)


class PartSource(ComposedSource):
    """Parts of the weights of any sets.

    A read of a part, in a stage that was given the whole weight, is a read of the whole: that is the weight whose
    content can be looked at again.
    """

    def __init__(self, parts: Mapping[str, Part]) -> None:
        super().__init__({name: part.weight for name, part in parts.items()})
        self._parts = parts

    def expose(self, name: str, tensor: Tensor, digests: FileDigests | None) -> None:
        whole = self._parts[name].weight
        source, there = whole.within()
        source.expose(there, whole.tensor, digests)

    def digest(self, name: str, tensor: Tensor, digests: FileDigests | None) -> str:
        part = self._parts[name]
        source, there = part.weight.within()
        if part.in_place and source.origin(there) is None:
            return source.digest(there, tensor, digests)
        self.expose(name, tensor, digests)
        ranges = self.ranges(name, tensor)
        return digest_bytes(self.view(name, tensor)) if ranges is None else ranges.digest()

    def view(self, name: str, tensor: Tensor) -> memoryview:
        part = self._parts[name]
        if part.in_place:
            source, there = part.weight.within()
            return source.view(there, tensor)
        return self._put_together(part)[tensor.offset : tensor.offset + tensor.nbytes].toreadonly()

    def private(self, name: str, tensor: Tensor) -> memoryview:
        part = self._parts[name]
        if part.in_place:
            source, there = part.weight.within()
            return source.private(there, tensor)
        return self._put_together(part)[tensor.offset : tensor.offset + tensor.nbytes]

    def place(self, name: str, tensor: Tensor) -> Place | None:
        return super().place(name, tensor) if self._parts[name].in_place else None

    def extent(self, name: str, tensor: Tensor) -> Extent | None:
        return super().extent(name, tensor) if self._parts[name].in_place else None

    def copies(self, name: str, tensor: Tensor) -> bool:
        return not self._parts[name].in_place or super().copies(name, tensor)

    def ranges(self, name: str, tensor: Tensor) -> Ranges | None:
        part = self._parts[name]
        if part.in_place:
            return super().ranges(name, tensor)
        return Ranges(tensor.nbytes, lambda begin, out: self._fill(part, out, tensor.offset + begin))

    def fill(self, name: str, tensor: Tensor, out: memoryview) -> None:
        part = self._parts[name]
        if part.in_place:
            super().fill(name, tensor, out)
        else:
            self._fill(part, out, tensor.offset)

    def origin(self, name: str) -> Origin | None:
        return None

    def state(self) -> bytes:
        hasher = Hasher("parts")
        hasher.part("weights", super().state())
        for name in sorted(self._parts):
            hasher.part(name, repr(tuple(self._parts[name].spans)).encode())
        return hasher.digest().encode()

    def unguarded(self, weight: Weight, there: str, callers: Mapping[str, WeightSet]) -> Weight:
        part = self._parts[there]
        whole = part.weight.unguarded(callers)
        if whole is part.weight:
            return weight
        moved = part._replace(weight=whole)
        tensor = moved.tensor(weight.shape, weight.tensor.shard)
        return Weight(there, Layout({there: tensor}), PartSource({there: moved}), there)

    def _put_together(self, part: Part) -> memoryview:
        out = memoryview(bytearray(part.nbytes))
        self._fill(part, out, 0, is_zero=True)
        return out

    def _fill(self, part: Part, out: memoryview, begin: int, *, is_zero: bool = False) -> None:
        """Fill ``out`` with the bytes of a part from ``begin`` on. is_zero: whether it holds zeros only."""
        if part.spans.nbytes < part.nbytes and not is_zero:
            for start in range(0, len(out), _ZEROS):
                piece = out[start : start + _ZEROS]
                piece[:] = bytes(len(piece))
        whole = part.weight.tensor
        source, there = part.weight.within()
        extent = source.extent(there, whole)
        if extent is not None:
            for spans, at in within_spans(part.spans, begin, len(out)):
                read_spans(extent.fd, extent.offset, spans, out[at:])
            extent.check()  # bytes that changed while they were read are not the weight that was opened
            return
        data = source.view(there, whole)
        for spans, at in within_spans(part.spans, begin, len(out)):
            copy_spans(data, spans, out[at:])
