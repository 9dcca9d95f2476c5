"""Checkpoints that were cut up before they were saved: tensors named ``<name>_shard-<i>-of-<n>``, i from 1.

The axis of each name is in the metadata key ``cachec.shard_axes`` of the file that holds its shards: a JSON object
name -> axis; axis 0 where a name is not in it. Names are TVM's convention (``param_I_shard-X-of-Y``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from cachec.errors import CheckpointError, UsageError
from cachec.model import from_json
from cachec.weights.tensor import Tensor

AXES_KEY = "cachec.shard_axes"
#: Metadata: a JSON list of the names in the file that are no shards, so that a missing and an extra one show.
WHOLE_KEY = "cachec.shard_whole"
#: What is in a folder of shards: for people and for messages.
INDEX_NAME = "cachec-shards.json"
_RANK_FILE = r"rank-(?P<number>[1-9]\d{0,8})-of-(?P<count>[1-9]\d{0,8})\.safetensors"
_SHARD = r"(?s)(?P<name>.+)_shard-(?P<number>0|[1-9]\d{0,8})-of-(?P<count>0|[1-9]\d{0,8})"


def is_shard_name(name: str) -> bool:
    """Whether a name in a file is that of a shard."""
    return "_shard-" in name and re.fullmatch(_SHARD, name) is not None


def check_world_size(world_size: object) -> None:
    """Raise UsageError for what is no number of workers."""
    if type(world_size) is not int or world_size < 1:
        raise UsageError(f"world_size= expected a number of workers from 1, found {world_size!r}")


class World(NamedTuple):
    """One worker's place: rank from 0, among ``size`` workers."""

    rank: int
    size: int


def world(rank: int | None, world_size: int | None, source: str) -> World | None:
    """The worker's place, or None where neither is given. Raises UsageError for one alone, or out of range.

    source: the weights that it is for, which the error names.
    """
    if rank is None and world_size is None:
        return None
    if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
        raise UsageError(
            f"{source}: rank= and world_size= go together, with 0 <= rank < world_size; found {rank!r} of "
            f"{world_size!r}"
        )
    return World(rank, world_size)


class ShardIndex(msgspec.Struct, kw_only=True):
    """The index of a folder of shards."""

    version: int
    world_size: int
    files: list[str]
    axes: dict[str, int]
    #: Of the whole tensors, before padding.
    shapes: dict[str, list[int]]


def rank_file(rank: int, world_size: int) -> str:
    """The name of the file of worker ``rank`` (from 0)."""
    return f"rank-{rank + 1}-of-{world_size}.safetensors"


def own_file(folder: str, place: World | None, on_open: Callable[[str], None]) -> str | None:
    """The path of the worker's own file in a folder of shards, or None where the folder is not one.

    Reads only names. on_open: called with each path before that. Raises CheckpointError where the folder has other
    workers' files but not this one's, and where there is no worker to open it for.
    """
    if place is not None:
        own = os.path.join(folder, rank_file(*place))
        on_open(own)
        if os.path.lexists(own):
            return own
    on_open(folder)
    matches = [match for name in os.listdir(folder) if (match := re.fullmatch(_RANK_FILE, name))]
    if not matches:
        return None
    sizes = sorted({int(match["count"]) for match in matches})
    if place is None:
        raise CheckpointError(
            f"{folder}: weights cut up for world_size={' and '.join(map(str, sizes))}; "
            "open them with rank= and world_size="
        )
    if place.size not in sizes:
        raise CheckpointError(
            f"{folder}: expected {rank_file(*place)} (world_size={place.size}), found shards for "
            f"world_size={' and '.join(map(str, sizes))}; open it with that, or cut the weights up for {place.size}"
        )
    numbers = sorted(int(match["number"]) for match in matches if int(match["count"]) == place.size)
    raise CheckpointError(
        f"{folder}: missing {rank_file(*place)}, the file of rank={place.rank}; found those of rank "
        f"{', '.join(str(number - 1) for number in numbers[:16])} of world_size={place.size}"
    )


def whole_names(path: str, metadata: Mapping[str, str]) -> set[str] | None:
    """Return the tensors that one file states to have in addition to its shards, or None.

    Raises CheckpointError for anything but a JSON list of names.
    """
    text = metadata.get(WHOLE_KEY)
    if text is None:
        return None
    return set(
        from_json(text, list[str], CheckpointError, f"{path}: metadata {WHOLE_KEY!r} expected a JSON list of names")
    )


def check_whole(path: str, tensors: Iterable[str], stated: set[str]) -> None:
    """The tensors of one file that are no shards are those that it states. Raises CheckpointError for another one."""
    names = {name for name in tensors if not is_shard_name(name)}
    for name in sorted(stated - names):
        raise CheckpointError(f"{path}: missing tensor {name!r}, expected beside the shards (metadata {WHOLE_KEY!r})")
    for name in sorted(names - stated):
        raise CheckpointError(f"{path}: extra tensor {name!r}, expected only what metadata {WHOLE_KEY!r} names")


def shard_axes(path: str, metadata: Mapping[str, str]) -> dict[str, int]:
    """The axes that one file states. Raises CheckpointError for anything but a JSON object of name -> axis from 0."""
    text = metadata.get(AXES_KEY)
    if text is None:
        return {}
    words = f"{path}: metadata {AXES_KEY!r} expected a JSON object name -> axis"
    axes = from_json(text, dict[str, int], CheckpointError, words)
    for name, axis in axes.items():
        if axis < 0:
            raise CheckpointError(f"{path}: metadata {AXES_KEY!r}: axis of {name!r} expected from 0, found {axis}")
    return axes


def own_tensors(
    source: str,
    tensors: Mapping[str, Tensor],
    axes: Mapping[str, int],
    place: World,
    file_of: Callable[[str], str],
) -> dict[str, Tensor]:
    """What one worker maps: its own shards under their plain names, and every tensor that is not sharded.

    file_of: the path of the file that has the tensor of that name.

    A source with the shards of more than one worker must have all shards of every name; one with only this worker's
    must have them for every name. Raises CheckpointError for another world size, a missing, extra or unfit shard.
    """
    whole: dict[str, Tensor] = {}
    shards: dict[str, dict[int, Tensor]] = {}
    for full, tensor in tensors.items():
        match = re.fullmatch(_SHARD, full)
        if match is None:
            whole[full] = tensor
            continue
        name, number, count = match["name"], int(match["number"]), int(match["count"])
        if count != place.size:
            raise CheckpointError(
                f"{file_of(full)}: {full!r}: expected {place.size} shards (world_size), found {count}; "
                f"open it with world_size={count}, or save it for {place.size}"
            )
        if not 1 <= number <= count:
            raise CheckpointError(
                f"{file_of(full)}: extra shard {full!r}: expected numbers 1 to {count}, found {number}"
            )
        shards.setdefault(name, {})[number] = tensor
    if not shards and place.size != 1:
        raise CheckpointError(
            f"{source}: world_size={place.size}, but no tensor is named <name>_shard-<i>-of-{place.size}; "
            "open it without rank= and world_size="
        )
    _check_axes(source, axes, shards)
    mine = place.rank + 1
    alone = all(set(numbered) == {mine} for numbered in shards.values())
    for name, numbered in shards.items():
        if name in whole:
            raise CheckpointError(f"{file_of(name)}: {name!r} is there both whole and in shards; expected one of them")
        expected: Iterable[int] = (mine,) if alone else range(1, place.size + 1)
        for number in expected:
            if number not in numbered:
                numbers = ", ".join(map(str, sorted(numbered)))
                raise CheckpointError(
                    f"{source}: missing shard '{name}_shard-{number}-of-{place.size}', expected for "
                    f"rank={place.rank} of world_size={place.size}; found number {numbers} of {name!r}, in "
                    f"{file_of(f'{name}_shard-{min(numbered)}-of-{place.size}')}"
                )
        axis = axes.get(name, 0)
        _check_fit(name, axis, numbered, lambda number: file_of(f"{name}_shard-{number}-of-{place.size}"))  # noqa: B023
        own = numbered[mine]
        whole[name] = Tensor(own.dtype, own.shape, own.nbytes, own.offset, own.file, (axis, place.size), own.layout)
    return whole


def _check_axes(source: str, axes: Mapping[str, int], shards: Mapping[str, object]) -> None:
    for name in axes:
        if name not in shards:
            raise CheckpointError(f"{source}: metadata {AXES_KEY!r} names {name!r}, of which there is no shard")


def _check_fit(name: str, axis: int, tensors: Mapping[int, Tensor], file_of: Callable[[int], str]) -> None:
    first = tensors[min(tensors)]
    if axis >= len(first.shape):
        raise CheckpointError(
            f"{file_of(min(tensors))}: {name!r}: shard axis expected below {len(first.shape)} for {list(first.shape)}, "
            f"found {axis}"
        )
    for number, tensor in tensors.items():
        same = len(tensor.shape) == len(first.shape) and all(
            a == b for i, (a, b) in enumerate(zip(tensor.shape, first.shape, strict=True)) if i != axis
        )
        if (tensor.dtype, tensor.layout) != (first.dtype, first.layout) or not same:
            raise CheckpointError(
                f"{file_of(number)}: {name!r}: shard {number} expected {first.dtype} {list(first.shape)} but for axis "
                f"{axis}, found {tensor.dtype} {list(tensor.shape)}"
            )
