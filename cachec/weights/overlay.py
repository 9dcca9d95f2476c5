"""Weights over other weights: a few changed or new ones, padded ones, and ones that are computed when looked at."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from cachec.base import fsio
from cachec.base.hashing import Hasher
from cachec.errors import HandleClosed, UsageError, WeightError
from cachec.weights.arrays import buffers_of
from cachec.weights.dtypes import SIZES, size_of
from cachec.weights.handles import Handles
from cachec.weights.io.strided_copy import slice_spans
from cachec.weights.layout import Layout, checked_name
from cachec.weights.shards import AxisPatterns, Slice, SliceSource, matching_axes
from cachec.weights.sources import Buffer, MemorySource, Source, Ways
from cachec.weights.tensor import Tensor
from cachec.weights.weight import Callers, MadeOfWeights, Weight
from cachec.weights.wrappers import ComposedSource

#: The axis that is the rank, as PEFT (``peft/tuners/lora/layer.py``) lays out its adapters.
LORA: Final[AxisPatterns] = {"*lora_A*": 0, "*lora_B*": 1}


class _Over(Mapping[str, Weight]):
    """The handles of two sets, the second over the first, made when asked for."""

    def __init__(self, base: Handles, over: Handles) -> None:
        self._base = base
        self._over = over

    def __getitem__(self, name: str) -> Weight:
        return self._over[name] if name in self._over else self._base[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        yield from (name for name in self._over if name not in self._base)

    def __len__(self) -> int:
        return len(self._base) + sum(name not in self._base for name in self._over)


class OverlaySource(ComposedSource):
    """One set over another. Costs nothing a weight, unlike a composition of handles."""

    def __init__(self, base: Handles, over: Handles, layout: Layout) -> None:
        """layout: of both together."""
        super().__init__(_Over(base, over))
        self._sets = (base, over)
        self._layout = layout

    def overlaid_on(self, layout: Layout) -> tuple[str, tuple[str, ...]] | None:
        base, over = self._sets
        where = base.whole_origin() if layout is self._layout else None
        return None if where is None else (where, tuple(over))

    def sources(self) -> list[Source]:
        return list({id(weights.source): weights.source for weights in self._sets}.values())

    def state(self) -> bytes:
        hasher = Hasher("overlay")
        for weights in self._sets:
            hasher.part("set", weights.revision.encode())
        return hasher.digest().encode()


def overlay(base: Handles, over: Handles, *, replace: bool = False) -> tuple[Layout, Source]:
    """``over`` over ``base``; see ``WeightSet.overlay``."""
    if over.worker is not None and (base.worker is None or over.worker.rank != base.worker.rank):
        raise UsageError(
            f"overlay: weights of rank {over.worker.rank} over those of "
            f"{'no rank' if base.worker is None else f'rank {base.worker.rank}'}; expected the same rank"
        )
    layout = base.layout.overlaid(over.layout, replace=replace)
    return layout, OverlaySource(base, over, layout)


class ComputedWeight(NamedTuple):
    """A weight that is computed."""

    #: A name as in WeightSpec.
    dtype: str
    shape: tuple[int, ...]
    #: The WeightSet it is derived from -> an array.
    make: Callable[[Any], Any]


class MadeSource(MadeOfWeights):
    """Weights that are computed when they are looked at, from the weights of another set. Nothing is kept."""

    def __init__(self, base: Handles, made: Mapping[str, ComputedWeight]) -> None:
        self._base = base
        self._made: Mapping[str, ComputedWeight] | None = made
        self._token = os.urandom(16)

    def ways(self, name: str, tensor: Tensor) -> Ways:
        return Ways(lambda: self._view(name, tensor))

    def _view(self, name: str, tensor: Tensor) -> memoryview:
        import numpy as np

        if self._made is None:
            raise HandleClosed(f"weight {name!r}: its set was released")
        made = self._made[name]
        tensors, buffers = buffers_of({name: np.asarray(made.make(self._base), order="C")})
        fresh = tensors[name]
        if (fresh.dtype, fresh.shape) != (made.dtype, made.shape):
            raise WeightError(
                f"derived weight {name!r}: expected {made.dtype} {list(made.shape)}, "
                f"found {fresh.dtype} {list(fresh.shape)}; "
                f"state what is returned: ComputedWeight(dtype, shape, function)"
            )
        return buffers[name].view[tensor.offset : tensor.offset + tensor.nbytes]

    def unguard(self, weight: Weight, there: str, callers: Callers) -> Weight:
        """Made now, into a file without a name: its function may use handles that close with the stage."""
        import tempfile  # slow to import, and only needed where a result is not stored

        tensor = weight.tensor
        data = self._view(there, tensor)
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.flush()
            view = fsio.map_read(file.fileno(), 0, tensor.nbytes)
        single = Layout({there: Tensor(tensor.dtype, tensor.shape, tensor.nbytes, 0, 0, tensor.shard, tensor.layout)})
        return Weight(there, single, MemorySource({there: Buffer(view, fixed=True)}), there)

    def arguments(self) -> tuple[str, ...]:
        return self._base.source.arguments()

    def changed(self) -> str | None:
        return self._base.changed()

    def state(self) -> bytes:
        return self._token

    def release(self) -> None:
        self._made = None
        self._base.release()


def derive(
    base: Handles, made: Mapping[str, ComputedWeight | Callable[[Weight], Any]], tied: Iterable[Iterable[str]]
) -> tuple[Layout, Source]:
    """``base`` with computed weights; see ``WeightSet.derive``."""
    stated = {checked_name(name, "derive"): _computed_weight(base, name, value) for name, value in made.items()}
    tensors = {name: _tensor_of(base, name, value) for name, value in stated.items()}
    over = Handles(Layout(tensors).with_ties(tied), MadeSource(base, stated), rank=base.worker)
    # Releasing the result releases the base, which is what it is made of, in either way.
    return overlay(base, over, replace=True)


def _computed_weight(base: Handles, name: str, value: Any) -> ComputedWeight:
    if isinstance(value, ComputedWeight):
        return ComputedWeight(value.dtype, tuple(value.shape), value.make)
    if not callable(value):
        raise UsageError(
            f"derive: {name!r} expected ComputedWeight(dtype, shape, function) or a function, found {value!r}"
        )
    weight = base[name]
    return ComputedWeight(weight.dtype, weight.shape, lambda weights: value(weights[name]))


def _tensor_of(base: Handles, name: str, made: ComputedWeight) -> Tensor:
    size = size_of(made.dtype)
    if not all(type(dimension) is int and dimension >= 0 for dimension in made.shape):
        raise UsageError(f"derive: {name!r} expected a shape of integers from 0, found {made.shape!r}")
    known = base.layout.tensors.get(name)
    shard = known.shard if known is not None and len(known.shape) == len(made.shape) else None
    same = known is not None and (known.dtype, known.shape) == (made.dtype, made.shape)
    layout = known.layout if known is not None and same else "row-major"
    return Tensor(made.dtype, made.shape, math.prod(made.shape) * size, 0, 0, shard, layout)


def pad_rank(weights: Handles, patterns: AxisPatterns, rank: int) -> tuple[Layout, Source] | None:
    """Adapters of one rank, None where they have it; see ``WeightSet.pad_rank``. patterns: name -> the rank's axis."""
    if type(rank) is not int or rank < 1:
        raise UsageError(f"pad_rank: expected a rank from 1, found {rank!r}")
    layout = weights.layout
    tensors = dict(layout.tensors)
    parts: dict[str, Slice] = {}
    for name, axis in matching_axes(layout.tensors, patterns, "pad_rank").items():
        whole = layout.tensors[name]
        length = whole.shape[axis]
        if length > rank:
            raise UsageError(
                f"pad_rank: {name!r} {whole.dtype} {list(whole.shape)}: expected a rank of at most {rank} on axis "
                f"{axis}, found {length}; pad all adapters to the largest"
            )
        if length == rank:
            continue
        spans = slice_spans(whole.shape, SIZES[whole.dtype], axis, 0, length, rank)
        parts[name] = Slice(weights[name], spans, spans.number * spans.step)
        tensors[name] = parts[name].tensor((*whole.shape[:axis], rank, *whole.shape[axis + 1 :]), whole.shard)
    if not parts:
        return None
    found_layout = Layout(tensors, layout.ties, layout.nesting).with_ties(
        layout.ties
    )  # again: tied weights have to agree
    over = Handles(Layout({name: tensors[name] for name in parts}), SliceSource(parts), rank=weights.worker)
    return found_layout, OverlaySource(weights, over, found_layout)
