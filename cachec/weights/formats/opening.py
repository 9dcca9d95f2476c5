"""Opens checkpoints: resolves what the user named, reads headers, and remembers parsed layouts while that is safe."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from cachec.base import fsio
from cachec.base.audit_events import tell_read
from cachec.base.bounded_dict import BoundedDict
from cachec.base.display_text import argument_hint, is_url, to_type
from cachec.base.hashing import digest_bytes
from cachec.base.lazy import later
from cachec.base.mounts import TRACKED_FILESYSTEMS, Mounts
from cachec.errors import CheckpointError, UsageError, WeightsChanged
from cachec.model import MALFORMED_JSON
from cachec.weights.formats import MAGIC, SAFETENSORS, KnownFormat, format_of, load_format, safetensors
from cachec.weights.formats.base import Contents, Opener, Value
from cachec.weights.layout import Layout, Ties, stated_ties
from cachec.weights.manifest import Manifest
from cachec.weights.sources import FileSource, OpenedFile
from cachec.weights.tensor import Tensor

if TYPE_CHECKING:
    from cachec.weights.formats import declared_specs, presharded, values
    from cachec.weights.formats.presharded import World
else:  # for weights that are cut up, those that are expected to be some, and those of a file that says them itself
    declared_specs, presharded = (
        later("cachec.weights.formats.declared_specs"),
        later("cachec.weights.formats.presharded"),
    )
    values = later("cachec.weights.formats.values")

AnyPath = str | os.PathLike[str]
Source = AnyPath | Sequence[AnyPath]
#: Called with each path before it is accessed.
_OnOpen = Callable[[str], None]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
#: The file names of a TVM tensor cache, newest first.
_TVM_NAMES = ("tensor-cache.json", "ndarray-cache.json")
_INDEX_SUFFIX = ".index.json"
_MAX_INDEX = 100_000_000

#: Parsed headers and opened checkpoints that one process remembers.
_HEADERS = 256
_CHECKPOINTS = 64

# The fields of fsio.Identity in one call: an open of 100 files is 100 of these.
_state = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")


class Checkpoint(msgspec.Struct, frozen=True):
    """An opened checkpoint: what its names mean, and the files in the state in which they were read."""

    layout: Layout
    files: tuple[OpenedFile, ...]
    #: With ``states``: every file that the layout depends on (shards and index)
    paths: tuple[str, ...]
    states: tuple[tuple[int, ...], ...]
    #: Paths that must not exist.
    absent: tuple[str, ...]
    #: Bytes that no file holds as they are.
    values: tuple[Value, ...] = ()

    def source(self, *, read_access: bool) -> FileSource:
        """Where the bytes come from. read_access: copy them into memory instead of mapping the files."""
        if self.values:
            return values.ValueSource(self.files, self.values, read_access=read_access)
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


class Checkpoints:
    """Opens checkpoints and remembers what it parsed.

    A whole checkpoint is remembered by the states of its files, where a later write to any of them would show: settled,
    on a file system that marks every write, no writer or writable map (as for ``hashing.FileDigests``). A header is
    remembered by its bytes, which are read anew wherever that trust does not hold.
    """

    def __init__(self, mounts: Mounts | None = None) -> None:
        self._mounts = mounts or Mounts()
        self._headers: BoundedDict[Contents] = BoundedDict(_HEADERS)
        self._merged: BoundedDict[Layout] = BoundedDict(_CHECKPOINTS)
        self._opened: BoundedDict[Checkpoint] = BoundedDict(_CHECKPOINTS)

    def open(
        self, source: Source, *, ties: Ties = (), world: World | None = None, specs: Manifest | None = None
    ) -> Checkpoint:
        """The checkpoint. specs: what its weights are expected to be. What is looked at is told as read, also where
        that is not there or malformed.

        Raises CheckpointError (malformed, or not as expected), OSError (not there), UsageError (not a source).
        """
        key = (_absolute(source), ties, world, specs)
        known = self._opened.get(key)
        if known is not None:
            tell_read((*known.paths, *known.absent), like=source)
            if known.current():
                return known
        on_open = partial(_report_open, source)
        checkpoint, trusted = self._read(key[0], _OpenRequest(ties, world, specs), on_open)
        if trusted:
            self._opened.put(key, checkpoint)
        return checkpoint

    def _read(self, source: str | tuple[str, ...], wanted: _OpenRequest, on_open: _OnOpen) -> tuple[Checkpoint, bool]:
        absent: tuple[str, ...] = ()
        if isinstance(source, str) and os.path.isdir(source):
            single, index = os.path.join(source, SINGLE), os.path.join(source, INDEX)
            on_open(single)
            if os.path.lexists(single):
                return self._read_files((single,), wanted, on_open)
            on_open(index)
            if os.path.lexists(index):
                source, absent = index, (single,)
            elif (own := presharded.own_file(source, wanted.world, on_open)) is not None:
                source, absent = own, (single, index)
            else:
                earlier = [single, index]
                for name in _TVM_NAMES:
                    earlier.append(os.path.join(source, name))
                    on_open(earlier[-1])
                    if os.path.lexists(earlier[-1]):
                        break
                else:
                    raise CheckpointError(
                        f"{source}: expected {SINGLE}, {INDEX} or {_TVM_NAMES[0]} in the folder; "
                        "name the files as a list"
                    )
                source, absent = earlier[-1], tuple(earlier[:-1])
        if isinstance(source, tuple):
            return self._read_files(source, wanted, on_open)
        if source.endswith(_INDEX_SUFFIX):
            return self._read_index(source, absent, wanted, on_open)
        return self._read_files((source,), wanted, on_open, absent=absent)

    def _read_index(
        self, path: str, absent: tuple[str, ...], wanted: _OpenRequest, on_open: _OnOpen
    ) -> tuple[Checkpoint, bool]:
        on_open(path)
        with fsio.closing(fsio.open_read(path)) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise CheckpointError(f"{path}: expected a regular file, found another kind")
            identity = fsio.identity(fd)
            if identity.size > _MAX_INDEX:
                raise CheckpointError(f"{path}: index expected at most {_MAX_INDEX} bytes, found {identity.size}")
            try:
                text = fsio.pread_exact(fd, 0, identity.size)
            except EOFError as error:
                raise WeightsChanged(f"{path}: became shorter while it was opened") from error
            trusted = self._trusts(fd, path, identity)
        index = _IndexFile(path, identity, digest_bytes(text), _weight_map(path, text), trusted)
        folder = os.path.dirname(path)
        shards = tuple(os.path.join(folder, name) for name in index.shards())
        return self._read_files(shards, wanted, on_open, index=index, absent=absent)

    def _read_files(
        self,
        paths: tuple[str, ...],
        wanted: _OpenRequest,
        on_open: _OnOpen,
        *,
        index: _IndexFile | None = None,
        absent: tuple[str, ...] = (),
    ) -> tuple[Checkpoint, bool]:
        label = index.path if index else ", ".join(paths)
        files: list[OpenedFile] = []
        contents: list[Contents] = []
        starts: list[int] = []
        trusted = index is None or index.trusted
        for path in paths:
            on_open(path)
        _refuse_what_is_no_file(paths, index)
        for path in paths:
            opened_files, content, trust = self._read_file(path, on_open)
            starts.append(len(files))
            files += opened_files
            contents.append(content)
            trusted = trusted and trust
        # The key keeps the contents alive, so equal ids mean equal contents.
        parts = (label, tuple(contents), tuple(starts), index.digest if index else "", wanted)
        layout = self._merged.get(parts)
        if layout is None:
            layout = _merge(label, paths, contents, starts, index, wanted).with_ties(wanted.stated_ties())
            self._merged.put(parts, layout)
        values = tuple(
            Value(value.pattern, value.nbytes, start + value.file)
            for start, content in zip(starts, contents, strict=True)
            for value in content.values
        )
        opened = tuple(file.path for file in files) + ((index.path,) if index else ())
        states = tuple(file.identity for file in files) + ((index.identity,) if index else ())
        return Checkpoint(layout, tuple(files), opened, states, absent, values), trusted

    def _read_file(self, path: str, on_open: _OnOpen) -> tuple[tuple[OpenedFile, ...], Contents, bool]:
        fd = fsio.open_read(path)
        try:
            identity = fsio.identity(fd)
            trusted = self._may_trust(path, identity) and fsio.keep_writers_out(fd)
            start = os.pread(fd, safetensors.START, 0)
            known = format_of(path, start[:MAGIC])
            data = safetensors.header_bytes(path, fd, identity, start) if known is SAFETENSORS else b""
            trusted = trusted and fsio.let_writers_in(fd)
        finally:
            os.close(fd)
        if known is not SAFETENSORS:
            return self._read_format(path, known, on_open)
        digest = digest_bytes(data)
        key = f"{digest}:{identity.size}"
        contents = self._headers.get(key)
        if contents is None:
            header = safetensors.parse_header(path, data, identity.size)
            contents = Contents(header.tensors, header.metadata)
            self._headers.put(key, contents)
        return (OpenedFile(path, identity, len(data), digest),), contents, trusted

    def _read_format(
        self, path: str, format: KnownFormat, on_open: _OnOpen
    ) -> tuple[tuple[OpenedFile, ...], Contents, bool]:
        with Opener(path, self._trusts, on_open) as opener:
            contents = load_format(format).read(path, opener)
            finished = opener.finish(contents)
        # Read again to record the accesses; but equal contents share one object, and one layout.
        key = (format.target, finished.key)
        known = self._headers.get(key)
        if known is None:
            known = contents
            self._headers.put(key, known)
        return finished.files, known, finished.trusted

    def _trusts(self, fd: int, path: str, identity: fsio.Identity) -> bool:
        return self._may_trust(path, identity) and fsio.no_writer(fd)

    def _may_trust(self, path: str, identity: fsio.Identity) -> bool:
        return fsio.is_settled(identity) and self._mounts.kind_of_device(identity.dev, path) in TRACKED_FILESYSTEMS


class _OpenRequest(msgspec.Struct, frozen=True):
    """How a checkpoint is to be opened, beyond its source."""

    ties: Ties
    world: World | None
    specs: Manifest | None

    def stated_ties(self) -> Ties:
        """The groups of tied names: as given, else as the specs say."""
        if self.ties or self.specs is None:
            return self.ties
        return stated_ties(self.specs.weights.values())


class _IndexFile(msgspec.Struct, frozen=True):
    """An index file as it was read."""

    path: str
    identity: fsio.Identity
    digest: str
    weight_map: dict[str, str]
    trusted: bool

    def shards(self) -> list[str]:
        """The files that it names, each once, sorted."""
        return sorted(set(self.weight_map.values()))


@cache
def process_checkpoints() -> Checkpoints:
    """What this process has opened. One a process, because ``open_weights`` is a plain function and a repeated open of
    an unchanged checkpoint has to cost its ``stat`` calls and no more; every answer is checked against the files."""
    return Checkpoints()


def _report_open(source: Source, path: str) -> None:
    tell_read((path,), like=source)


def label_of(source: Source) -> str:
    """A source as errors name it, without going through it, for it may be an iterator."""
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    return ", ".join(map(str, source)) if isinstance(source, list | tuple) else "open_weights"


def opened_artifact(path: AnyPath) -> OpenedFile:
    """An immutable file of raw bytes without a header. Raises OSError where it is not there."""
    absolute = _absolute_path(path)
    tell_read([absolute], like=path)
    return OpenedFile(absolute, fsio.identity(absolute), 0, "", artifact=True)


def _merge(
    label: str,
    paths: Sequence[str],
    contents: Sequence[Contents],
    starts: Sequence[int],
    index: _IndexFile | None,
    wanted: _OpenRequest,
) -> Layout:
    """starts: for each path the number of its first file among all."""
    world, specs = wanted.world, wanted.specs
    is_as_indexed = index is not None and _is_as_indexed(index, contents)
    if not is_as_indexed:
        _refuse_twice(label, paths, contents)
    axes: dict[str, int] = {}
    if world is not None:
        for path, header in zip(paths, contents, strict=True):
            for name, axis in presharded.shard_axes(path, header.metadata).items():
                if axes.setdefault(name, axis) != axis:
                    raise CheckpointError(f"{path}: shard axis of {name!r} expected {axes[name]}, found {axis}")
            stated = presharded.whole_names(path, header.metadata)
            if stated is not None:
                presharded.check_whole(path, header.tensors, stated)
    if index is not None and not is_as_indexed:
        raise _not_as_indexed(index, paths, contents)
    if world is None and specs is None:
        return Layout(lambda: _together(contents, starts))
    merged = _together(contents, starts)
    untyped = {
        tensor.file
        for header, tensors in _each_moved(contents, starts)
        if not header.typed
        for tensor in tensors.values()
    }

    def is_untyped(tensor: Tensor) -> bool:
        return tensor.file in untyped

    def file_of(name: str) -> str:
        return next((path for path, header in zip(paths, contents, strict=True) if name in header.tensors), label)

    if world is not None:
        if specs is not None:
            axes = declared_specs.given_axes(specs, merged, is_untyped, world) | axes
        merged = presharded.own_tensors(label, merged, axes, world, file_of)
    return Layout(merged if specs is None else declared_specs.with_specs(label, merged, is_untyped, specs))


def _together(contents: Sequence[Contents], starts: Sequence[int]) -> dict[str, Tensor]:
    """The tensors of all, of which no two have one name."""
    merged: dict[str, Tensor] = {}
    for _, tensors in _each_moved(contents, starts):
        merged |= tensors
    return merged


def _each_moved(contents: Sequence[Contents], starts: Sequence[int]) -> Iterator[tuple[Contents, dict[str, Tensor]]]:
    """What each reader found, with its tensors as they count among those of all."""
    values = 0
    for header, start in zip(contents, starts, strict=True):
        yield header, _shift_indices(header.tensors, start, values)
        values += len(header.values)


def _shift_indices(tensors: Mapping[str, Tensor], files: int, values: int) -> dict[str, Tensor]:
    """The same where ``files`` files and ``values`` values of other paths come first."""
    if isinstance(tensors, safetensors.HeaderTensors):
        return tensors.in_file(files)
    return {
        name: Tensor(
            tensor.dtype,
            tensor.shape,
            tensor.nbytes,
            tensor.offset,
            tensor.file + files if tensor.file >= 0 else tensor.file - values,
            tensor.shard,
            tensor.layout,
        )
        for name, tensor in tensors.items()
    }


def _refuse_twice(label: str, paths: Sequence[str], contents: Sequence[Contents]) -> None:
    """Raise CheckpointError for a name that is in two files."""
    names: set[str] = set()
    for header in contents:
        names.update(header.tensors)
    if len(names) == sum(len(header.tensors) for header in contents):
        return
    owners: dict[str, str] = {}
    for path, header in zip(paths, contents, strict=True):
        for name in header.tensors:
            if name in owners:
                raise CheckpointError(f"{label}: tensor {name!r} is both in {owners[name]} and in {path}")
        owners.update(dict.fromkeys(header.tensors, path))


def _is_as_indexed(index: _IndexFile, contents: Sequence[Contents]) -> bool:
    """Whether each tensor is in the shard that the index says, and so in no other, and in the index."""
    place_of = index.weight_map.get
    return len(index.weight_map) == sum(len(header.tensors) for header in contents) and all(
        list(map(place_of, header.tensors)).count(shard) == len(header.tensors)
        for shard, header in zip(index.shards(), contents, strict=True)
    )


def _not_as_indexed(index: _IndexFile, paths: Sequence[str], contents: Sequence[Contents]) -> CheckpointError:
    """paths: those of ``index.shards()``."""
    weight_map = index.weight_map
    owners = {name: shard for shard, header in zip(index.shards(), contents, strict=True) for name in header.tensors}
    for name, shard in weight_map.items():
        owner = owners.get(name)
        if owner is None:
            return CheckpointError(f"{index.path}: tensor {name!r} expected in {shard!r}, found in no shard")
        if owner != shard:
            return CheckpointError(f"{index.path}: tensor {name!r} expected in {shard!r}, found in {owner!r}")
    extra = next(
        (name, path)
        for path, header in zip(paths, contents, strict=True)
        for name in header.tensors
        if name not in weight_map
    )
    return CheckpointError(f"{index.path}: extra tensor {extra[0]!r} in {extra[1]}, not in the index")


def _refuse_what_is_no_file(paths: Iterable[str], index: _IndexFile | None) -> None:
    """Called before any is opened, as that may do something to a device. Raises CheckpointError, OSError."""
    for path in paths:
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            if index is None:
                raise
            name = os.path.relpath(path, os.path.dirname(index.path))
            raise CheckpointError(f"{index.path}: missing shard {name!r}, expected beside the index") from error
        if not stat.S_ISREG(mode):
            raise CheckpointError(f"{path}: expected a regular file, found another kind")


def _weight_map(path: str, text: bytes) -> dict[str, str]:
    try:
        index = msgspec.json.decode(text, type=_Index)
    except MALFORMED_JSON as error:
        safetensors.decode_object(path, "index", text)  # says so where it is no JSON at all
        raise CheckpointError(f"{path}: the index expected weight_map: name -> file name: {error}") from error
    metadata = bytes(index.metadata)
    # Strings: the key weight_map with its names and files, the key metadata with what it holds.
    strings = 1 + 2 * len(index.weight_map) + (1 + metadata.count(b'"') // 2 if metadata else 0)
    # Repeated keys within metadata would be counted with it, so it takes the exact check where it has any string value.
    known = strings if metadata.count(b":") <= 1 else -1
    safetensors.refuse_duplicates(path, "index", text, known, b":" + metadata)
    for shard in set(index.weight_map.values()):
        if not shard or shard.startswith("/") or ".." in shard.split("/") or "\0" in shard:
            name = next(name for name, file in index.weight_map.items() if file == shard)
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
    if not text or "\0" in text:  # an empty one would be the current folder
        raise UsageError(f"open_weights: expected a path, found {text!r}")
    if is_url(text):
        import shlex  # for the message alone

        expect = "" if re.search(r"[#&](sha256|blake3)=", text) else " --expect sha256:<64 hex digits>"
        opened = argument_hint('`cachec.Cache().weights("NAME")` opens it', "it goes by NAME")
        raise UsageError(
            f"{text} is no path. A URL says nothing about content, so it is fetched once, with a digest: "
            f"`{to_type(f'weights add {shlex.quote(text)} NAME{expect}')}`; then {opened}"
        )
    return text if text.startswith("/") else os.path.abspath(text)
