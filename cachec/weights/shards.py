"""Weights cut up for workers: slices of whole tensors by rank, and files that hold one worker's slices each.

A folder of shards:

    rank-<i>-of-<n>.safetensors   all that worker i (from 1, as in the names of the shards) of n maps: its slices as
                                  ``<name>_shard-<i>-of-<n>``, and a copy of every tensor that is not cut. Metadata:
                                  ``cachec.shard_axes`` (name -> axis) and ``cachec.shard_whole`` (the names of the
                                  tensors that are not cut), both JSON: what must be in the file, and nothing else.
    cachec-shards.json            what is in the folder, for people and for messages; no worker needs it.

A worker opens its own file and no other.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from cachec.base import fsio
from cachec.base.display_text import argument_hint
from cachec.base.hashing import FileDigests, Hasher, digest_bytes
from cachec.errors import UnknownWeight, UsageError
from cachec.weights.dtypes import SIZES
from cachec.weights.formats import presharded
from cachec.weights.handles import Handles
from cachec.weights.io.strided_copy import Spans, copy_spans, read_spans, slice_spans, within_spans
from cachec.weights.layout import Layout
from cachec.weights.sources import Origin, Ranges, Source, Ways
from cachec.weights.tensor import Tensor
from cachec.weights.weight import Callers, Weight
from cachec.weights.wrappers import ComposedSource

if TYPE_CHECKING:
    from cachec.weights.io.copying import Progress

#: Name, fnmatch glob, or compiled regular expression (of the full name) -> axis, or None for "every worker has all of
#: it". The first that matches decides; what none matches is whole on every worker.
AxisPatterns = Mapping[Any, "int | None"]
_ZEROS = 1 << 20


class Slice(NamedTuple):
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


class SliceSource(ComposedSource):
    """Parts of the weights of any sets.

    A read of a part, in a stage that was given the whole weight, is a read of the whole: that is the weight whose
    content can be looked at again.
    """

    def __init__(self, parts: Mapping[str, Slice]) -> None:
        super().__init__({name: part.weight for name, part in parts.items()})
        self._parts = parts

    def expose(self, name: str, tensor: Tensor, digests: FileDigests | None) -> None:
        super().expose(name, self._parts[name].weight.tensor, digests)

    def digest(self, name: str, tensor: Tensor, digests: FileDigests | None) -> str:
        if self._parts[name].in_place and super().origin(name) is None:
            return super().digest(name, tensor, digests)
        self.expose(name, tensor, digests)
        ways = self.ways(name, tensor)
        ranges = ways.ranges()
        return digest_bytes(ways.view()) if ranges is None else ranges.digest()

    def ways(self, name: str, tensor: Tensor) -> Ways:
        part = self._parts[name]
        if part.in_place:
            return super().ways(name, tensor)
        return Ways(
            lambda: _put_together(part, tensor).toreadonly(),
            copies=True,
            ranges=lambda: Ranges(tensor.nbytes, lambda begin, out: _fill(part, out, tensor.offset + begin)),
            own=lambda: _put_together(part, tensor),
        )

    def origin(self, name: str) -> Origin | None:
        return None

    def state(self) -> bytes:
        hasher = Hasher("parts")
        hasher.part("weights", super().state())
        for name in sorted(self._parts):
            hasher.part(name, repr(tuple(self._parts[name].spans)).encode())
        return hasher.digest().encode()

    def unguard(self, weight: Weight, there: str, callers: Callers) -> Weight:
        part = self._parts[there]
        whole = part.weight.unguard(callers)
        if whole is part.weight:
            return weight
        moved = part._replace(weight=whole)
        tensor = moved.tensor(weight.shape, weight.tensor.shard)
        return Weight(there, Layout({there: tensor}), SliceSource({there: moved}), there)


def _put_together(part: Slice, tensor: Tensor) -> memoryview:
    """The bytes that ``tensor`` states, in memory of their own."""
    out = memoryview(bytearray(part.nbytes))
    _fill(part, out, 0, is_zero=True)
    return out[tensor.offset : tensor.offset + tensor.nbytes]


def _fill(part: Slice, out: memoryview, begin: int, *, is_zero: bool = False) -> None:
    """Fill ``out`` with the bytes of a part from ``begin`` on. is_zero: whether it holds zeros only."""
    if part.spans.nbytes < part.nbytes and not is_zero:
        for start in range(0, len(out), _ZEROS):
            piece = out[start : start + _ZEROS]
            piece[:] = bytes(len(piece))
    ways = part.weight.ways()
    extent = ways.extent()
    if extent is not None:
        for spans, at in within_spans(part.spans, begin, len(out)):
            read_spans(extent.fd, extent.offset, spans, out[at:])
        extent.check()  # bytes that changed while they were read are not the weight that was opened
        return
    data = ways.view()
    for spans, at in within_spans(part.spans, begin, len(out)):
        copy_spans(data, spans, out[at:])


def matching_axes(tensors: Mapping[str, Tensor], patterns: AxisPatterns, what: str) -> dict[str, int]:
    """The axis of every tensor that a pattern gives one, from 0.

    Raises UnknownWeight for a pattern that matches no name, UsageError for an axis that a tensor does not have.
    """
    axes: dict[str, int] = {}
    decided: set[str] = set()
    for pattern, axis in patterns.items():
        matches = _matches(tensors, pattern)
        if not matches:
            text = pattern if isinstance(pattern, str) else pattern.pattern
            raise UnknownWeight(f"{what}: no weight among {len(tensors)} matches {text!r}")
        if axis is not None and type(axis) is not int:
            raise UsageError(f"{what}: expected an axis or None for {pattern!r}, found {axis!r}")
        for name in matches:
            if name in decided:
                continue
            decided.add(name)
            if axis is None:
                continue
            shape = tensors[name].shape
            if not -len(shape) <= axis < len(shape):
                raise UsageError(
                    f"{what}: {name!r} has {len(shape)} dimensions {list(shape)}, expected an axis below that, "
                    f"found {axis}"
                )
            axes[name] = axis % len(shape)
    return axes


def shard(
    weights: Handles, patterns: AxisPatterns, rank: int, world_size: int, *, pad: bool = False
) -> tuple[Layout, Source]:
    """What worker ``rank`` of ``world_size`` needs of whole weights; see ``WeightSet.shard``."""
    presharded.world(rank, world_size, "shard")
    worker = weights.worker
    if worker is not None and worker.rank != rank:
        raise UsageError(f"shard: these are the weights of rank {worker.rank}, expected of all or of rank {rank}")
    layout = weights.layout
    for name, tensor in layout.tensors.items():
        if tensor.shard is not None and tensor.shard[1] != world_size:
            raise UsageError(
                f"shard: {name!r} is one of {tensor.shard[1]} shards already, expected one world_size for all weights, "
                f"found {world_size}"
            )
    parts: dict[str, Slice] = {}
    tensors = dict(layout.tensors)
    for name, axis in matching_axes(layout.tensors, patterns, "shard").items():
        whole = layout.tensors[name]
        if whole.shard is not None:
            axis_there, count = whole.shard
            raise UsageError(f"shard: {name!r} is one of {count} shards on axis {axis_there} already, expected whole")
        if whole.layout != "row-major" and axis == len(whole.shape) - 1:
            raise UsageError(
                f"shard: {name!r} is {whole.layout} {list(whole.shape)}: expected an outer axis, found {axis}, "
                "which would cut its blocks"
            )
        length = _local_length(name, whole, axis, world_size, pad=pad)
        begin = min(rank * length, whole.shape[axis])
        there = min(length, whole.shape[axis] - begin)
        shape = (*whole.shape[:axis], length, *whole.shape[axis + 1 :])
        spans = slice_spans(whole.shape, SIZES[whole.dtype], axis, begin, there, length)
        parts[name] = Slice(weights[name], spans, spans.number * spans.step)
        tensors[name] = parts[name].tensor(shape, (axis, world_size))
    sharded = Layout(tensors, layout.ties, layout.nesting).with_ties(
        layout.ties
    )  # again: the parts of tied weights have to agree
    made = SliceSource(parts)
    handles = {name: Weight(name, sharded, made, name) if name in parts else weights[name] for name in tensors}
    return sharded, ComposedSource(handles)


def save_shards(
    weights: Handles,
    folder: str | os.PathLike[str],
    patterns: AxisPatterns,
    world_size: int,
    *,
    pad: bool = False,
    progress: Progress | None = None,
    fsync: bool = False,
) -> None:
    """Write one file a worker; see ``WeightSet.save_shards``."""
    from cachec.weights.io.writing import Whole, save_together

    presharded.check_world_size(world_size)
    for name, tensor in weights.layout.tensors.items():
        if presharded.is_shard_name(name):
            raise UsageError(f"save_shards: {name!r} is the name of a shard in a file; rename that weight first")
        if tensor.shard is not None:
            axis, count = tensor.shard
            raise UsageError(f"save_shards: {name!r} is one of {count} shards on axis {axis}, expected whole weights")
    place = os.fspath(folder)
    os.makedirs(place, exist_ok=True)
    expected = [presharded.rank_file(rank, world_size) for rank in range(world_size)]
    # A run that was killed left files of its own and no index: it is gone on with, or they are written again.
    extra = [name for name in sorted(os.listdir(place)) if name not in expected and not name.startswith(".")]
    if extra:
        raise UsageError(f"save_shards: {place} expected to be empty, found {extra[0]!r}; choose another folder")
    axes = matching_axes(weights.layout.tensors, patterns, "shard")
    files = []
    for rank, file in enumerate(expected):
        own = Handles(*shard(weights, patterns, rank, world_size, pad=pad))
        named = {shard_name(name, rank, world_size) if name in axes else name: own[name] for name in own}
        metadata = {
            presharded.AXES_KEY: msgspec.json.encode(axes, order="deterministic").decode(),
            presharded.WHOLE_KEY: msgspec.json.encode([name for name in own if name not in axes]).decode(),
        }
        renamed = Handles(Layout({name: each.tensor for name, each in named.items()}), ComposedSource(named))
        files.append(Whole(os.path.join(place, file), renamed, metadata))
    save_together(files, progress=progress, fsync=fsync)
    whole = {name: list(weights.layout.tensors[name].shape) for name in axes}
    index = presharded.ShardIndex(version=1, world_size=world_size, files=expected, axes=axes, shapes=whole)
    with fsio.Staging(place) as staged:
        staged.write(msgspec.json.format(msgspec.json.encode(index, order="deterministic")))
        staged.replace(os.path.join(place, presharded.INDEX_NAME), fsync=fsync)


def shard_name(name: str, rank: int, world_size: int) -> str:
    """How the shard of worker ``rank`` (from 0) is named in a file."""
    return f"{name}_shard-{rank + 1}-of-{world_size}"


def _local_length(name: str, whole: Tensor, axis: int, world_size: int, *, pad: bool) -> int:
    length = whole.shape[axis]
    if length % world_size and not pad:
        raise UsageError(
            f"shard: {name!r} {whole.dtype} {list(whole.shape)}: axis {axis} expected a multiple of {world_size} "
            f"(world_size), found {length}; choose another axis, or "
            f"{argument_hint('pass pad=True', 'say --pad')} to have every shard "
            f"filled up with zeros to {-(-length // world_size)}"
        )
    return -(-length // world_size)


def _matches(names: Iterable[str], pattern: str | re.Pattern[str]) -> list[str]:
    if isinstance(pattern, re.Pattern):
        return [name for name in names if pattern.fullmatch(name)]
    if not isinstance(pattern, str):
        raise UsageError(f"expected a name, a glob or a compiled regular expression, found {pattern!r}")
    if pattern in (names if isinstance(names, Mapping) else ()):
        return [pattern]
    return fnmatch.filter(names, pattern)
