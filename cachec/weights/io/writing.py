"""Writes weight sets as files, in the format that the suffix says; bytes depend on the weights only.

Shards (of safetensors): ``<stem>-00001-of-0000n.safetensors`` beside ``<stem>.safetensors.index.json``, which holds
``{"metadata": {"total_size": bytes}, "weight_map": {name: file}}`` (Hugging Face's convention).

Every file is written under a temporary name in its folder and renamed, so a path that somebody has mapped keeps its
bytes, and a reader sees all of the file or none. A process that is killed leaves a temporary file
``.<name>.partial-...``; the next one that writes the same name goes on with it or removes it (see ``staging.py``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from cachec.errors import UsageError
from cachec.weights.formats import SAFETENSORS, KnownFormat, format_to_write, safetensors, writer
from cachec.weights.formats.base import Plan
from cachec.weights.io.copying import Copier, Progress
from cachec.weights.io.staging import StagedFile
from cachec.weights.weight import Weight

_SUFFIX = ".safetensors"
#: The number of files that stay open until all are written, if they need no index.
_TOGETHER = 128


def save(
    weights: Mapping[str, Weight],
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    shard_size: int | None = None,
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    fsync: bool = False,
) -> None:
    """Write all weights of a set, tensor by tensor, in bounded memory.

    path: the file; a file that is there is replaced by a rename, and a set that is mapped from it keeps its bytes.
    format: ``safetensors``, ``irpa`` or ``ptd``; by default what the suffix says, safetensors where there is none.
    shard_size: bytes of tensors a file may have (safetensors; a larger tensor has a file of its own); if more than one
    file is needed, ``model.safetensors`` becomes ``model-00001-of-0000n.safetensors`` and so on, with
    ``model.safetensors.index.json``. metadata: text to keep in the header of each file (safetensors). progress: called
    with bytes done and bytes in all.

    Raises UsageError (no format of that suffix can be written, or what can't be written so), OSError (disk full:
    nothing is left of the file), WeightsChanged (the source changed, or an owned weight does not have the bytes that
    its name says).
    """
    target = os.path.abspath(os.fspath(path))
    known = format_to_write(target, format)
    fields = dict(metadata or {})
    _check_options(known, shard_size, fields)
    plan = writer(known).plan
    ordered = _order_weights(weights)
    _check_replaceable(target)
    total = sum(weight.nbytes for weight in ordered)
    shards = _shards(ordered, shard_size)
    files, index = ([target], "") if len(shards) == 1 else _shard_names(target, len(shards))
    plans = [plan(file, shard, fields) for file, shard in zip(files, shards, strict=True)]
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
        plans.append(safetensors.plan(path, _order_weights(weights), metadata))
    with Copier(progress, sum(weight.nbytes for each in files for weight in each.weights.values())) as copier:
        for begin in range(0, len(plans), _TOGETHER):
            _write(plans[begin : begin + _TOGETHER], "", copier, fsync)


def _check_options(known: KnownFormat, shard_size: int | None, metadata: Mapping[str, str]) -> None:
    if shard_size is not None and (type(shard_size) is not int or shard_size < 1):
        raise UsageError(f"save: shard_size expected a number of bytes from 1, found {shard_size!r}")
    if shard_size is not None and known is not SAFETENSORS:
        raise UsageError(f"save: {known.name} has no index of shards; leave shard_size out, or use safetensors")
    for key, value in metadata.items():
        if type(key) is not str or type(value) is not str:
            raise UsageError(f"save: metadata expected text by text, found {key!r}: {value!r}")


def _order_weights(weights: Mapping[str, Weight]) -> list[Weight]:
    return sorted((weights[name] for name in weights), key=lambda weight: weight.name)


def _shards(ordered: Sequence[Weight], limit: int | None) -> list[list[Weight]]:
    """The weights in runs of at most ``limit`` bytes, by name."""
    shards: list[list[Weight]] = [[]]
    remaining = limit if limit is not None else -1
    for weight in ordered:
        if limit is not None and weight.nbytes > remaining and shards[-1]:
            shards.append([])
            remaining = limit
        shards[-1].append(weight)
        remaining -= weight.nbytes
    return shards


def _shard_names(target: str, count: int) -> tuple[list[str], str]:
    """Return the files of the shards, and the index. Raises UsageError if existing files prevent them."""
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
            staged = [stack.enter_context(StagedFile(plan.path, plan)) for plan in plans]
            listing = stack.enter_context(StagedFile(index)) if index else None
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


def _check_replaceable(path: str) -> None:
    """Raise UsageError where ``path`` is something that a rename must not replace."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise UsageError(f"save: {path} expected to be a file or nothing, found a folder or a device")
