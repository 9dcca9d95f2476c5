"""Writes weight sets as files: safetensors (one, or shards with an index) and IRPA. Bytes depend on the weights only.

**safetensors** (see ``safetensors.py``): tensors by item size, the largest first, then by name, as the official writer
orders them; so each offset is a multiple of its item size without holes. JSON without spaces, padded with spaces to 8.
Sharded: ``<stem>-00001-of-0000n.safetensors`` beside ``<stem>.safetensors.index.json``, which holds
``{"metadata": {"total_size": bytes}, "weight_map": {name: file}}`` (Hugging Face's convention).

**IRPA** 0.0 (see ``formats/irpa.py``): header at 0, entries at 96, each aligned to 16, names without gaps, storage and
every tensor aligned to 64, the file filled up to a multiple of 4096. The same bytes as IREE's own writer makes.

Every file is written under a temporary name in its folder and renamed, so a path that somebody has mapped keeps its
bytes, and a reader sees all of the file or none. A process that is killed leaves a temporary file
``.<name>.partial-...``; the next one that writes the same name goes on with it or removes it (see ``staging.py``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from cachec.errors import UsageError
from cachec.weights.dtypes import SAFETENSORS, SIZES
from cachec.weights.formats.safetensors import MAX_HEADER
from cachec.weights.moving.copying import Copier, Progress
from cachec.weights.moving.staging import Plan, Staged
from cachec.weights.weight import Weight

_CODES = {dtype: code for code, (dtype, _) in SAFETENSORS.items()}
_SUFFIX = ".safetensors"
#: Files that are kept open until all are written, where they need no index.
_TOGETHER = 128

_IRPA_HEADER = struct.Struct("<4sHHQQQQ6Q")
_IRPA_DATA_ENTRY = struct.Struct("<QIQQQQQQQQ")
_IRPA_DATA = 2
_IRPA_ENTRY_ALIGNMENT = 16
_IRPA_DATA_ALIGNMENT = 64
_IRPA_FILE_ALIGNMENT = 4096


class _Planner(Protocol):
    def __call__(self, path: str, weights: Sequence[Weight], metadata: Mapping[str, str]) -> Plan: ...


def save(
    weights: Mapping[str, Weight],
    path: str | os.PathLike[str],
    *,
    format: str = "safetensors",
    shard_size: int | None = None,
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    fsync: bool = False,
) -> None:
    """Write all weights of a set, tensor by tensor, in bounded memory.

    path: the file; a file that is there is replaced by a rename, and a set that is mapped from it keeps its bytes.
    format: ``safetensors`` or ``irpa``. shard_size: bytes of tensors a file may have (safetensors; a larger tensor has
    a file of its own); if more than one file is needed, ``model.safetensors`` becomes
    ``model-00001-of-0000n.safetensors`` and so on, with ``model.safetensors.index.json``. metadata: text to keep in the
    header of each file (safetensors). progress: called with bytes done and bytes in all.

    Raises UsageError (what can't be written so), OSError (disk full: nothing is left of the file), WeightsChanged (the
    source changed, or an owned weight does not have the bytes that its name says).
    """
    target = os.path.abspath(os.fspath(path))
    planner = _checked_planner(format, shard_size, metadata)
    kept = dict(metadata or {})
    ordered = _ordered(weights)
    _check_replaceable(target)
    total = sum(weight.nbytes for weight in ordered)
    shards = _shards(ordered, shard_size)
    files, index = ([target], "") if len(shards) == 1 else _shard_names(target, len(shards))
    plans = [planner(file, shard, kept) for file, shard in zip(files, shards, strict=True)]
    with Copier(progress, total) as copier:
        _write(plans, index, copier, fsync)


class Whole(NamedTuple):
    """All of a file: where, what, and text for its header."""

    path: str
    weights: Mapping[str, Weight]
    metadata: Mapping[str, str]


def save_together(files: Sequence[Whole], *, progress: Progress | None = None, fsync: bool = False) -> None:
    """Write safetensors files, none of which gets its name before a group of them is written. Raises as ``save``."""
    plans = []
    for path, weights, metadata in files:
        _check_replaceable(path)
        plans.append(_plan_safetensors(path, _ordered(weights), metadata))
    with Copier(progress, sum(weight.nbytes for each in files for weight in each.weights.values())) as copier:
        for begin in range(0, len(plans), _TOGETHER):
            _write(plans[begin : begin + _TOGETHER], "", copier, fsync)


def _checked_planner(format: str, shard_size: int | None, metadata: Mapping[str, str] | None) -> _Planner:
    if format not in {"safetensors", "irpa"}:
        raise UsageError(f"save: format expected 'safetensors' or 'irpa', found {format!r}")
    if shard_size is not None and (type(shard_size) is not int or shard_size < 1):
        raise UsageError(f"save: shard_size expected a number of bytes from 1, found {shard_size!r}")
    if format == "safetensors":
        for key, value in (metadata or {}).items():
            if type(key) is not str or type(value) is not str:
                raise UsageError(f"save: metadata expected text by text, found {key!r}: {value!r}")
        return _plan_safetensors
    if shard_size is not None:
        raise UsageError("save: IRPA archives have no index of shards; leave shard_size out, or use safetensors")
    if metadata:
        raise UsageError("save: an IRPA archive keeps no metadata; leave it out, or use safetensors")
    return _plan_irpa


def _ordered(weights: Mapping[str, Weight]) -> list[Weight]:
    return sorted((weights[name] for name in weights), key=lambda weight: weight.name)


def _shards(ordered: Sequence[Weight], limit: int | None) -> list[list[Weight]]:
    """The weights in runs of at most ``limit`` bytes, by name."""
    shards: list[list[Weight]] = [[]]
    room = limit if limit is not None else -1
    for weight in ordered:
        if limit is not None and weight.nbytes > room and shards[-1]:
            shards.append([])
            room = limit
        shards[-1].append(weight)
        room -= weight.nbytes
    return shards


def _shard_names(target: str, count: int) -> tuple[list[str], str]:
    """The files of the shards, and the index. Raises UsageError where they can't be beside what is there."""
    stem = target.removesuffix(_SUFFIX)
    if stem == target:
        raise UsageError(f"save: {target}: shards are named after a file that ends in {_SUFFIX}")
    if os.path.lexists(target):
        raise UsageError(f"save: {target} is there and would hide the shards; remove it, or choose another name")
    index = f"{target}.index.json"
    files = [f"{stem}-{number:05d}-of-{count:05d}{_SUFFIX}" for number in range(1, count + 1)]
    for path in (index, *files):
        _check_replaceable(path)
    return files, index


def _write(plans: Sequence[Plan], index: str, copier: Copier, fsync: bool) -> None:
    """Write the files of these plans, and then give all of them their names. index: path of their index, if any."""
    with contextlib.ExitStack() as stack:
        try:
            staged = [stack.enter_context(Staged(plan.path, plan)) for plan in plans]
            listing = stack.enter_context(Staged(index)) if index else None
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            raise UsageError(
                f"save: {len(plans)} files are open until all are written, more than this process may have; use a "
                "larger shard_size, or raise the limit (ulimit -n)"
            ) from error
        for file in staged:
            file.write(copier)
        if listing is not None:
            listing.file.write(_index_of(plans))
            # An old index would give old names to new shards: without one, a crash from here on shows.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(index)
        for file in (*staged, *([listing] if listing is not None else [])):
            file.publish(fsync)


def _index_of(plans: Sequence[Plan]) -> bytes:
    shard_of = {weight.name: os.path.basename(plan.path) for plan in plans for weight, _ in plan.places}
    total = sum(weight.nbytes for plan in plans for weight, _ in plan.places)
    text = {"metadata": {"total_size": total}, "weight_map": {name: shard_of[name] for name in sorted(shard_of)}}
    return msgspec.json.format(msgspec.json.encode(text), indent=2) + b"\n"


# --- what a file looks like


def _plan_safetensors(path: str, weights: Sequence[Weight], metadata: Mapping[str, str]) -> Plan:
    for weight in weights:
        if weight.dtype not in _CODES:
            raise UsageError(f"save: weight {weight.name!r}: safetensors has no {weight.dtype}; use format='irpa'")
        if weight.tensor.layout != "row-major":
            raise UsageError(
                f"save: weight {weight.name!r}: safetensors has no {weight.tensor.layout} blocks; use format='irpa', "
                "which has no types, or values that are no blocks"
            )
        if weight.name == "__metadata__":
            raise UsageError("save: safetensors reserves the name '__metadata__'; rename that weight")
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    places: list[tuple[Weight, int]] = []
    end = 0
    for weight in sorted(weights, key=lambda weight: (-SIZES[weight.dtype], weight.name)):
        begin, end = end, end + weight.nbytes
        shape = list(weight.shape)
        header[weight.name] = {"dtype": _CODES[weight.dtype], "shape": shape, "data_offsets": [begin, end]}
        places.append((weight, begin))
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise UsageError(f"save: {path}: the header may have {MAX_HEADER} bytes, found {len(text)}; use shard_size=")
    head = struct.pack("<Q", len(text)) + text
    start = len(head)
    return Plan(path, head, tuple((weight, start + begin) for weight, begin in places), start + end)


def _plan_irpa(path: str, weights: Sequence[Weight], metadata: Mapping[str, str]) -> Plan:
    names = [weight.name.encode() for weight in weights]
    size = _IRPA_DATA_ENTRY.size
    step = _up(size, _IRPA_ENTRY_ALIGNMENT)
    entries_at = _up(_IRPA_HEADER.size, _IRPA_ENTRY_ALIGNMENT)
    # The table ends with its last entry, the names begin right there.
    entries_size = step * (len(weights) - 1) + size if weights else 0
    names_at = entries_at + entries_size
    names_size = sum(map(len, names))
    storage_at = _up(names_at + names_size, _IRPA_DATA_ALIGNMENT)
    table = bytearray()
    places: list[tuple[Weight, int]] = []
    name_at = end = 0
    for weight, name in zip(weights, names, strict=True):
        begin = _up(end, _IRPA_DATA_ALIGNMENT)
        end = begin + weight.nbytes
        entry = (size, _IRPA_DATA, 0, name_at, len(name), 0, 0, _IRPA_DATA_ALIGNMENT, begin, weight.nbytes)
        table += bytes(-len(table) % _IRPA_ENTRY_ALIGNMENT) + _IRPA_DATA_ENTRY.pack(*entry)
        name_at += len(name)
        places.append((weight, storage_at + begin))
    segments = (entries_at, entries_size, names_at, names_size, storage_at, end)
    header = _IRPA_HEADER.pack(b"IRPA", 0, 0, _IRPA_HEADER.size, 0, 0, len(weights), *segments)
    head = header.ljust(entries_at, b"\0") + bytes(table) + b"".join(names)
    return Plan(path, head, tuple(places), _up(storage_at + end, _IRPA_FILE_ALIGNMENT))


def _up(offset: int, alignment: int) -> int:
    return offset + -offset % alignment


def _check_replaceable(path: str) -> None:
    """Raise UsageError where ``path`` is something that a rename must not replace."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise UsageError(f"save: {path} expected to be a file or nothing, found a folder or a device")
