"""Opens checkpoints: resolves what the user named, reads headers, and remembers parsed layouts while that is safe."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable, Sequence
from functools import cache
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Generic, NamedTuple, TypeVar

import msgspec

from cachec import fsio
from cachec.errors import CheckpointError, UsageError, WeightsChanged
from cachec.hashing import digest_bytes
from cachec.topology import Manifest
from cachec.weights.formats import TVM_NAMES, format_of, reader
from cachec.weights.formats.base import Contents, Opener, Value
from cachec.weights.formats.expected import given_axes, with_specs
from cachec.weights.formats.values import ValueSource
from cachec.weights.layout import Layout, Ties
from cachec.weights.presharded import World, check_whole, own_file, own_tensors, shard_axes, whole_names
from cachec.weights.safetensors import Tensor, decode_object, parse_header, read_header_bytes, refuse_duplicates
from cachec.weights.sources import FileSource, OpenedFile

AnyPath = str | os.PathLike[str]
Source = AnyPath | Sequence[AnyPath]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_INDEX_SUFFIX = ".index.json"
_MAX_INDEX = 100_000_000

#: Parsed headers and opened checkpoints that one process remembers.
_HEADERS = 256
_CHECKPOINTS = 64

# The fields of fsio.Identity in one call: an open of 100 files is 100 of these.
_state = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")

T = TypeVar("T")


class Checkpoint(NamedTuple):
    """An opened checkpoint: what its names mean, and the files in the state in which they were read.

    paths, states: every file whose state the layout depends on (shards and index); absent: paths that must not exist.
    values: bytes that no file holds as they are.
    """

    layout: Layout
    files: tuple[OpenedFile, ...]
    paths: tuple[str, ...]
    states: tuple[tuple[int, ...], ...]
    absent: tuple[str, ...]
    values: tuple[Value, ...] = ()

    def source(self, *, read_access: bool) -> FileSource:
        """Where the bytes come from. read_access: copy them into memory instead of mapping the files."""
        if self.values:
            return ValueSource(self.files, self.values, read_access=read_access)
        return FileSource(self.files, read_access=read_access)

    def current(self) -> bool:
        """Whether every file is still in the state that was read."""
        try:
            if tuple(map(_state, map(os.stat, self.paths))) != self.states:
                return False
        except OSError:
            return False
        return not any(map(os.path.lexists, self.absent))


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: msgspec.Raw = msgspec.Raw()


class _Kept(Generic[T]):
    """A table of at most ``limit`` values that drops the oldest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[object, T] = {}
        self._lock = threading.Lock()

    def get(self, key: object) -> T | None:
        return self._values.get(key)

    def put(self, key: object, value: T) -> None:
        with self._lock:
            self._values.pop(key, None)
            while len(self._values) >= self._limit:
                del self._values[next(iter(self._values))]
            self._values[key] = value


class Checkpoints:
    """Opens checkpoints and remembers what it parsed.

    A whole checkpoint is remembered by the states of its files, where a later write to any of them would show: settled,
    on a file system that marks every write, no writer or writable map (as for ``hashing.FileDigests``). A header is
    remembered by its bytes, which are read anew wherever that trust does not hold.
    """

    def __init__(self, mounts: fsio.Mounts | None = None) -> None:
        self._mounts = mounts or fsio.Mounts()
        self._headers: _Kept[Contents] = _Kept(_HEADERS)
        self._merged: _Kept[Layout] = _Kept(_CHECKPOINTS)
        self._opened: _Kept[Checkpoint] = _Kept(_CHECKPOINTS)

    def open(self, source: Source, *, ties: Ties = (), world: World | None = None) -> Checkpoint:
        """The checkpoint. Raises CheckpointError (malformed), OSError (not there), UsageError (not a source)."""
        key = (_absolute(source), ties, world)
        known = self._opened.get(key)
        if known is not None and known.current():
            return known
        checkpoint, trusted = self._read(key[0], ties, world)
        if trusted:
            self._opened.put(key, checkpoint)
        return checkpoint

    def _read(self, source: str | tuple[str, ...], ties: Ties, world: World | None) -> tuple[Checkpoint, bool]:
        absent: tuple[str, ...] = ()
        if isinstance(source, str) and stat.S_ISDIR(os.stat(source).st_mode):
            single, index = os.path.join(source, SINGLE), os.path.join(source, INDEX)
            if os.path.lexists(single):
                source = single
            elif os.path.lexists(index):
                source, absent = index, (single,)
            elif (own := own_file(source, world)) is not None:
                source, absent = own, (single, index)
            else:
                raise CheckpointError(f"{source}: expected {SINGLE} or {INDEX} in the folder; name the files as a list")
        if isinstance(source, tuple):
            return self._read_files(source, ties, world)
        if source.endswith(_INDEX_SUFFIX):
            return self._read_index(source, absent, ties, world)
        return self._read_files((source,), ties, world, absent=absent)

    def _read_index(
        self, path: str, absent: tuple[str, ...], ties: Ties, world: World | None
    ) -> tuple[Checkpoint, bool]:
        fd = fsio.open_read(path)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise CheckpointError(f"{path}: expected a regular file, found another kind")
            found = fsio.identity(fd)
            if found.size > _MAX_INDEX:
                raise CheckpointError(f"{path}: index expected at most {_MAX_INDEX} bytes, found {found.size}")
            try:
                text = fsio.pread_exact(fd, 0, found.size)
            except EOFError as error:
                raise WeightsChanged(f"{path}: became shorter while it was opened") from error
            trusted = self._trusts(fd, path, found)
        finally:
            os.close(fd)
        index = _Opened(path, found, digest_bytes(text), _weight_map(path, text), trusted)
        folder = os.path.dirname(path)
        shards = tuple(os.path.join(folder, name) for name in sorted(set(index.weight_map.values())))
        for shard in shards:
            if not os.path.exists(shard):
                raise CheckpointError(f"{path}: missing shard {os.path.basename(shard)!r}, expected beside the index")
        return self._read_files(shards, ties, world, index=index, absent=absent)

    def _read_files(
        self,
        paths: tuple[str, ...],
        ties: Ties,
        world: World | None,
        *,
        index: _Opened | None = None,
        absent: tuple[str, ...] = (),
    ) -> tuple[Checkpoint, bool]:
        label = index.path if index else ", ".join(paths)
        files: list[OpenedFile] = []
        headers: list[Header] = []
        trusted = index is None or index.trusted
        for path in paths:
            file, header, trust = self._read_file(path)
            files.append(file)
            headers.append(header)
            trusted = trusted and trust
        # The headers are kept alive by the key, so equal ids mean equal headers.
        parts = (label, tuple(headers), index.digest if index else "", ties, world)
        layout = self._merged.get(parts)
        if layout is None:
            layout = _merge(label, paths, headers, index, world).tied(ties)
            self._merged.put(parts, layout)
        opened = tuple(file.path for file in files) + ((index.path,) if index else ())
        states = tuple(tuple(file.identity) for file in files) + ((tuple(index.identity),) if index else ())
        return Checkpoint(layout, tuple(files), opened, states, absent), trusted

    def _read_file(self, path: str) -> tuple[OpenedFile, Header, bool]:
        if not stat.S_ISREG(os.stat(path).st_mode):  # before the open: opening a pipe would wait for its writer
            raise CheckpointError(f"{path}: expected a regular file, found another kind")
        fd = fsio.open_read(path)
        try:
            calm = fsio.no_writer(fd)
            data, found = read_header_bytes(path, fd)
            trusted = calm and self._trusts(fd, path, found)
        finally:
            os.close(fd)
        key = (digest_bytes(data), found.size)
        header = self._headers.get(key)
        if header is None:
            header = parse_header(path, data, found.size)
            self._headers.put(key, header)
        return OpenedFile(path, found, header.nbytes, header.digest), header, trusted

    def _trusts(self, fd: int, path: str, found: fsio.Identity) -> bool:
        return (
            fsio.settled(found)
            and self._mounts.kind_of_device(found.dev, path) in fsio.TRACKED_FILESYSTEMS
            and fsio.no_writer(fd)
        )


class _Opened(NamedTuple):
    """An index file as it was read."""

    path: str
    identity: fsio.Identity
    digest: str
    weight_map: dict[str, str]
    trusted: bool


@cache
def process_checkpoints() -> Checkpoints:
    """What this process has opened. One a process, because ``open_weights`` is a plain function and a repeated open of
    an unchanged checkpoint has to cost its ``stat`` calls and no more; every answer is checked against the files."""
    return Checkpoints()


def opened_artifact(path: AnyPath) -> OpenedFile:
    """An immutable file of raw bytes without a header. Raises OSError where it is not there."""
    absolute = _absolute_path(path)
    return OpenedFile(absolute, fsio.identity(absolute), 0, "", artifact=True)


def _merge(
    label: str, paths: Sequence[str], headers: Sequence[Header], index: _Opened | None, world: World | None
) -> Layout:
    merged: dict[str, Tensor] = {}
    axes: dict[str, int] = {}
    for number, (path, header) in enumerate(zip(paths, headers, strict=True)):
        for name, tensor in header.tensors.items():
            if name in merged:
                raise CheckpointError(f"{label}: tensor {name!r} is both in {paths[merged[name].file]} and in {path}")
            merged[name] = (
                tensor if number == 0 else Tensor(tensor.dtype, tensor.shape, tensor.nbytes, tensor.offset, number)
            )
        if world is not None:
            for name, axis in shard_axes(path, header.metadata).items():
                if axes.setdefault(name, axis) != axis:
                    raise CheckpointError(f"{path}: shard axis of {name!r} expected {axes[name]}, found {axis}")
            stated = whole_names(path, header.metadata)
            if stated is not None:
                check_whole(path, header.tensors, stated)
    if index is not None:
        _check_index(index, paths, merged)
    if world is not None:
        merged = own_tensors(label, merged, axes, world)
    return Layout(merged)


def _check_index(index: _Opened, paths: Sequence[str], merged: dict[str, Tensor]) -> None:
    numbers = {os.path.normpath(path): number for number, path in enumerate(paths)}
    folder = os.path.dirname(index.path)
    for name, shard in index.weight_map.items():
        tensor = merged.get(name)
        if tensor is None:
            raise CheckpointError(f"{index.path}: tensor {name!r} expected in {shard!r}, found in no shard")
        if tensor.file != numbers[os.path.normpath(os.path.join(folder, shard))]:
            found = os.path.basename(paths[tensor.file])
            raise CheckpointError(f"{index.path}: tensor {name!r} expected in {shard!r}, found in {found!r}")
    for name, tensor in merged.items():
        if name not in index.weight_map:
            raise CheckpointError(f"{index.path}: extra tensor {name!r} in {paths[tensor.file]}, not in the index")


def _weight_map(path: str, text: bytes) -> dict[str, str]:
    try:
        index = msgspec.json.decode(text, type=_Index)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        decode_object(path, "index", text)  # says so where it is no JSON at all
        raise CheckpointError(f"{path}: the index expected weight_map: name -> file name: {error}") from error
    metadata = bytes(index.metadata)
    # Strings: the key weight_map with its names and files, the key metadata with what it holds.
    strings = 1 + 2 * len(index.weight_map) + (1 + metadata.count(b'"') // 2 if metadata else 0)
    # Repeated keys within metadata would be counted with it, so it takes the exact check where it has any string value.
    refuse_duplicates(path, "index", text, strings if metadata.count(b":") <= 1 else -1)
    for name, shard in index.weight_map.items():
        parts = PurePosixPath(shard).parts
        if not shard or shard.startswith("/") or ".." in parts or "\0" in shard:
            raise CheckpointError(f"{path}: tensor {name!r}: expected a file within the folder, found {shard!r}")
    if not index.weight_map:
        raise CheckpointError(f"{path}: weight_map is empty")
    return index.weight_map


def _absolute(source: Source) -> str | tuple[str, ...]:
    if isinstance(source, str | os.PathLike):
        return _absolute_path(source)
    if isinstance(source, bytes) or not isinstance(source, Iterable):
        raise UsageError(f"open_weights: expected a path or a list of paths, found {type(source).__name__}")
    paths = tuple(_absolute_path(path) for path in source)
    if not paths:
        raise UsageError("open_weights: the list of files is empty")
    return paths


def _absolute_path(path: AnyPath) -> str:
    text = os.fspath(path)
    if not isinstance(text, str):
        raise UsageError(f"open_weights: expected a path as text, found {text!r}")
    return text if text.startswith("/") else os.path.abspath(text)
