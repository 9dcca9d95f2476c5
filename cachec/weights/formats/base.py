"""What every format reader shares: bounded reads of a file's structure, checks, and what a reader returns."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import msgspec
from blake3 import blake3

from cachec.base import fsio
from cachec.base.hashing import digest_bytes
from cachec.errors import CheckpointError, WeightsChanged
from cachec.weights.dtypes import SIZES
from cachec.weights.sources import OpenedFile
from cachec.weights.tensor import Tensor
from cachec.weights.weight import Weight

#: numpy's limit of dimensions.
MAX_DIMENSIONS = 64
MAX_BYTES = 2**63 - 1
#: Bytes of structure that one file may have: headers, tables, directories; data is not counted.
MAX_STRUCTURE = 1 << 30
#: Bytes before a file's first tensor that are compared again when the file is bound.
_MAX_CHECKED = 1 << 24
_BLOCK = 1 << 13
#: The metadata of a file without metadata.
NO_TEXTS: Mapping[str, str] = MappingProxyType({})
_NO_CHECKSUMS: Mapping[int, str] = MappingProxyType({})


class Value(msgspec.Struct, frozen=True):
    """Bytes that are in no file as they are: ``pattern`` repeated up to ``nbytes``."""

    pattern: bytes
    nbytes: int
    #: Where the pattern is from.
    file: int = 0


class Contents(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What a reader found."""

    #: By name; ``Tensor.file`` from 0 is a number among the opened files, below 0 it is ``-1 - number`` of a value,
    #: ``Tensor.offset`` then a place within that value.
    tensors: Mapping[str, Tensor]
    #: The metadata in the file.
    metadata: Mapping[str, str] = NO_TEXTS
    values: tuple[Value, ...] = ()
    #: False for a format that knows neither dtype nor shape: its tensors are uint8 vectors.
    typed: bool = True
    #: What is stated of all bytes of a file, by its number, as in ``OpenedFile``.
    checksums: Mapping[int, str] = _NO_CHECKSUMS


class Plan(msgspec.Struct, frozen=True):
    """One file to be written: its first bytes, where each weight goes (by offset, none over another), its size."""

    path: str
    head: bytes
    places: tuple[tuple[Weight, int], ...]
    size: int


@runtime_checkable
class Format(Protocol):
    """A reader of a checkpoint format: a module with this function, as are the other modules of this package."""

    def read(self, path: str, opener: Opener) -> Contents:
        """Return the place of each tensor in the file ``opener.main``, from its structure only, validated in full.

        path: absolute, as the user named it. Other files are opened by ``opener.beside``. Raises CheckpointError, which
        ``opener.main.error`` and ``bad`` make, for whatever is malformed; no byte of a file may make it raise another.
        """


@runtime_checkable
class WritableFormat(Protocol):
    """What writes a format."""

    def plan(self, path: str, weights: Sequence[Weight], metadata: Mapping[str, str]) -> Plan:
        """What a file with these weights looks like; equal weights and metadata give equal plans.

        weights: sorted by name. metadata: text to keep beside them. Raises UsageError for what the format can't hold.
        """


class CheckpointFile:
    """A file during the reading of its structure: ``pread`` through one buffer, with a hash of all bytes read."""

    def __init__(self, path: str, number: int, trusts: Callable[[int, str, fsio.Identity], bool]) -> None:
        """number: in the order of opening. Raises OSError (not there), CheckpointError (no regular file)."""
        self.path = path
        self.number = number
        if not stat.S_ISREG(os.stat(path).st_mode):  # before the open: opening a pipe would wait for its writer
            raise CheckpointError(f"{path}: expected a regular file, found another kind")
        self.fd = fsio.open_read(path)
        try:
            if not stat.S_ISREG(os.fstat(self.fd).st_mode):
                raise CheckpointError(f"{path}: expected a regular file, found another kind")
            self._calm = fsio.no_writer(self.fd)
            self.identity = fsio.identity(self.fd)
        except BaseException:
            os.close(self.fd)
            raise
        self.size = self.identity.size
        self._trusts = trusts
        self._start = 0
        self._buffer = b""
        self._read = 0
        self._hasher = blake3()

    def at(self, offset: int, nbytes: int, what: str) -> bytes:
        """The bytes ``[offset, offset + nbytes)``. Raises CheckpointError where the file has fewer, naming ``what``."""
        start = self._start
        if not (start <= offset and offset + nbytes <= start + len(self._buffer)):
            self._load(offset, nbytes, what)
            start = self._start
        return self._buffer[offset - start : offset - start + nbytes]

    def within(self, offset: int, nbytes: int, what: str) -> None:
        """Raise CheckpointError unless ``[offset, offset + nbytes)`` is in the file."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise self.error(
                f"{what} expected within the {self.size} bytes of the file, found {nbytes} bytes at offset {offset}: "
                "the file is truncated, or malformed"
            )

    def error(self, text: str) -> CheckpointError:
        """An error that names this file."""
        return CheckpointError(f"{self.path}: {text}")

    def bad(self, name: str, expected: str, found: object) -> CheckpointError:
        """An error that names this file and a tensor."""
        return CheckpointError(f"{self.path}: tensor {name!r}: expected {expected}, found {found}")

    def close(self) -> None:
        os.close(self.fd)

    def finish(self, first: int | None) -> tuple[OpenedFile, bool, str]:
        """Return the file as it was read, whether its state may be trusted later, and a digest of all bytes read.

        first: the offset of the first tensor byte in it, None where none is. Raises WeightsChanged where it changed.
        """
        checked = min(self.size if first is None else first, _MAX_CHECKED)
        try:
            prefix = fsio.pread_exact(self.fd, 0, checked)
        except EOFError as error:
            raise WeightsChanged(f"{self.path}: became shorter while it was opened") from error
        if fsio.identity(self.fd) != self.identity:
            raise WeightsChanged(f"{self.path}: changed while it was opened")
        trusted = self._calm and self._trusts(self.fd, self.path, self.identity)
        opened = OpenedFile(self.path, self.identity, checked, digest_bytes(prefix) if checked else "")
        return opened, trusted, f"{self.path}\0{self.size}\0{self._hasher.hexdigest()}"

    def _load(self, offset: int, nbytes: int, what: str) -> None:
        self.within(offset, nbytes, what)
        length = min(max(nbytes, _BLOCK), self.size - offset)
        self._read += length
        if self._read > 2 * MAX_STRUCTURE or nbytes > MAX_STRUCTURE:
            raise self.error(f"{what}: expected at most {MAX_STRUCTURE} bytes of structure, found more")
        try:
            self._buffer = fsio.pread_exact(self.fd, offset, length)
        except EOFError as error:
            raise WeightsChanged(f"{self.path}: became shorter while it was opened") from error
        self._start = offset
        self._hasher.update(self._buffer)


class FilesRead(msgspec.Struct, frozen=True):
    """Files after reading."""

    files: tuple[OpenedFile, ...]
    trusted: bool
    #: A digest of everything that the reader read.
    key: tuple[str, ...]


class Opener:
    """The files of one checkpoint while its structure is read; the first is the one that was named."""

    def __init__(
        self, path: str, trusts: Callable[[int, str, fsio.Identity], bool], on_open: Callable[[str], None]
    ) -> None:
        """on_open: called with each path before it is accessed."""
        self._trusts = trusts
        self._on_open = on_open
        self._by_path: dict[str, CheckpointFile] = {}
        self._files: list[CheckpointFile] = []
        self.main = self.open(path)

    def open(self, path: str) -> CheckpointFile:
        """A file, opened once. Raises OSError (not there), CheckpointError (no regular file)."""
        file = self._by_path.get(path)
        if file is None:
            file = self._by_path[path] = CheckpointFile(path, len(self._files), self._trusts)
            self._files.append(file)
        return file

    def open_sibling(self, location: str, what: str) -> CheckpointFile:
        """A file named by the main one: a relative path without ``..`` that stays in the folder, links followed.

        The folder is that of the main file, or that of what it links to. Raises CheckpointError.
        """
        main = self.main
        parts = location.split("/")
        if not location or location.startswith("/") or ".." in parts or "\0" in location or "\\" in location:
            raise main.error(f"{what}: expected a relative path within the folder, found {location!r}")
        path = os.path.join(os.path.dirname(main.path), location)
        if path in self._by_path:
            return self._by_path[path]
        self._on_open(path)
        real = os.path.realpath(path)
        folders = {os.path.dirname(os.path.realpath(main.path)), os.path.realpath(os.path.dirname(main.path))}
        if not any(real.startswith(folder.rstrip("/") + "/") for folder in folders):
            raise main.error(f"{what}: {location!r} expected to stay within the folder, found a link to {real}")
        try:
            return self.open(path)
        except OSError as error:
            raise main.error(
                f"{what}: expected the file {location!r} beside it, found none: {error.strerror}"
            ) from error
        except CheckpointError as error:
            raise main.error(f"{what}: {error}") from error

    def finish(self, contents: Contents) -> FilesRead:
        """Return the files as they were read. Raises WeightsChanged if one changed during the reading."""
        first: dict[int, int] = {}
        for tensor in contents.tensors.values():
            if tensor.file >= 0 and tensor.nbytes:
                first[tensor.file] = min(first.get(tensor.file, tensor.offset), tensor.offset)
        finished = [file.finish(first.get(file.number)) for file in self._files]
        return FilesRead(
            tuple(
                msgspec.structs.replace(opened, checksum=contents.checksums.get(number, ""))
                for number, (opened, _, _) in enumerate(finished)
            ),
            all(trusted for _, trusted, _ in finished),
            tuple(digest for _, _, digest in finished),
        )

    def __enter__(self) -> Opener:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()


def size_in_bytes(file: CheckpointFile, name: str, dtype: str, shape: Iterable[int]) -> int:
    """Bytes of an array. Raises CheckpointError for too many dimensions, a negative one, or 2**63 bytes."""
    dimensions = tuple(shape)
    if len(dimensions) > MAX_DIMENSIONS:
        raise file.bad(name, f"at most {MAX_DIMENSIONS} dimensions", len(dimensions))
    if any(dimension < 0 for dimension in dimensions):
        raise file.bad(name, "a shape of integers from 0", list(dimensions))
    size = SIZES[dtype]
    # An empty tensor may hide a shape that no array can have: every dimension but the zeros counts.
    if math.prod(dimension for dimension in dimensions if dimension) * size > MAX_BYTES:
        raise file.bad(name, "a size below 2**63 bytes", f"{dtype} of shape {list(dimensions)}")
    return math.prod(dimensions) * size


def refuse_overlaps(file: CheckpointFile, spans: Iterable[tuple[int, int, str]], what: str = "tensor") -> None:
    """Raise CheckpointError where two of the (begin, end, name) spans share a byte."""
    reached, before = 0, ""
    for begin, end, name in sorted(spans):
        if begin < reached:
            raise file.error(
                f"{what} {name!r}: expected to begin at offset {reached} or later, found {begin}: "
                f"it overlaps {before!r}"
            )
        if end > begin:
            reached, before = end, name


def text_of(file: CheckpointFile, raw: bytes, what: str) -> str:
    """UTF-8 text. Raises CheckpointError."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise file.error(f"{what}: expected UTF-8, found {raw[:40]!r}") from error
