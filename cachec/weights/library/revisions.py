"""The records of the store's own weights: the parts of a revision, and the revision of a name.

    names/<name>.json           a pointer: replaced or removed as a whole; ``/`` in a name is written ``%2F``
    revisions/<64 hex>.json     a record, immutable, named by the BLAKE3 of its bytes; so equal weights are one revision

A record says which tensors there are, by name: either as digests of objects of the store (``owned``), or as places in
files that are the user's (``files``) with the state in which these were. All JSON; what is malformed, or of another
version, is an error, and then nothing is swept.

``flock`` on ``revisions`` orders what uses a record (shared) against what removes records (exclusive), as in the store:
who opens or adds one leases it first, as ``gc`` looks at the leases before it removes one.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from cachec.base import file_ownership, fsio
from cachec.base.display_text import nearest
from cachec.base.hashing import digest_bytes
from cachec.errors import UsageError, WeightError
from cachec.model import MALFORMED_JSON, ArtifactRef, Digest, WeightSpec
from cachec.store.leases import LeasedArtifacts, Leases
from cachec.weights.layout import Layout, stated_ties
from cachec.weights.tensor import Tensor, checked_tensor

VERSION = 1
MAX_NAME = 120
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@=-]*(/[A-Za-z0-9][A-Za-z0-9._+@=-]*)*")
_PREFIX = re.compile(r"[0-9a-f]{4,64}")
_DIGEST = re.compile(rb"[0-9a-f]{64}")
_SUFFIX = ".json"
#: Bytes of a record or a name: a record has a line of JSON a tensor.
_MAX_FILE = 1 << 30

_FILE = re.compile(r"[^.].*\.json")
_DAMAGED = "damaged: its bytes are not those that its name says; add the weights again"

T = TypeVar("T", bound="Pointer | RevisionRecord")

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _RevisionVersion(msgspec.Struct):
    version: int


class OwnedTensor(msgspec.Struct, frozen=True, gc=False):
    """A weight with its bytes in the object of that digest."""

    spec: WeightSpec
    digest: Digest


class PlacedTensor(msgspec.Struct, frozen=True, gc=False):
    """A weight with its bytes at ``offset`` of a file of the record."""

    spec: WeightSpec
    file: _Count
    offset: _Count


class PlacedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of the user's as it was when the revision was made; no device number, for that changes at a reboot."""

    path: str
    ino: int
    size: _Count
    mtime_ns: int
    ctime_ns: int
    header_nbytes: _Count
    header_digest: str
    #: What the checkpoint states of all its bytes, as in ``OpenedFile``.
    checksum: Annotated[str, msgspec.Meta(pattern="^((md5|sha1):.*|crc32:members)?$")] = ""


class RevisionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a revision consists of, sorted by name. Either ``owned``, or ``placed`` in ``files``."""

    version: int
    owned: tuple[OwnedTensor, ...] = ()
    placed: tuple[PlacedTensor, ...] = ()
    files: tuple[PlacedFile, ...] = ()


class Pointer(msgspec.Struct, frozen=True):
    """The revision of a name."""

    version: int
    name: str
    revision: Digest
    #: Unix time in seconds.
    created: float
    #: Where the weights came from, for people.
    source: str
    owned: bool
    count: _Count
    nbytes: _Count


class RevisionContents(NamedTuple):
    """A record that was checked."""

    record: RevisionRecord
    #: ``Tensor.file`` is a number in ``refs`` (owned) or in ``record.files``.
    layout: Layout
    #: sorted.
    refs: tuple[ArtifactRef, ...]

    @property
    def by_name(self) -> Mapping[str, str]:
        """The digest of each weight; empty for a revision in place."""
        return MappingProxyType({tensor.spec.name: tensor.digest for tensor in self.record.owned})


class Swept(NamedTuple):
    """What a sweep of the records did."""

    #: With ``in_use``: revisions without a name that are gone, and that processes hold.
    removed: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()
    #: Objects that the removed ones had named.
    loose: frozenset[Digest] = frozenset()


class Revisions:
    """Names and records in a folder."""

    def __init__(self, folder: Path, tmp: Path, *, fsync: bool) -> None:
        """tmp: where files are written first, on the same file system."""
        self.names = folder / "names"
        self.records = folder / "revisions"
        self._tmp = tmp
        self._fsync = fsync
        self._known: dict[str, RevisionContents] = {}

    # --- names

    def pointer(self, name: str) -> Pointer | None:
        """Return the pointer of ``name``. Raises WeightError if it is malformed, or can't be read."""
        path = self._name_path(name)
        try:
            data = _read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _decode_record(path, data, Pointer)

    def pointers(self) -> Iterator[Pointer]:
        """Every name, sorted."""
        for file in _list_files(self.names):
            path = self.names / file
            with contextlib.suppress(FileNotFoundError):
                yield _decode_record(path, _read(path), Pointer)

    def point(self, pointer: Pointer) -> None:
        """Let a name stand for a revision from now on."""
        self._write(self._name_path(pointer.name), msgspec.json.encode(pointer))

    def unpoint(self, name: str) -> None:
        """Remove a name. Raises WeightError for an unknown name."""
        try:
            os.unlink(self._name_path(name))
        except FileNotFoundError:
            raise self.unknown(name) from None

    def resolve(self, text: str) -> str:
        """Return the revision of a name, or of the first digits of a revision (4 at least). Raises WeightError."""
        pointer = self.pointer(text) if _is_name(text) else None
        if pointer is not None:
            return pointer.revision
        ids = [known for known in self.ids() if known.startswith(text)] if _PREFIX.fullmatch(text) else []
        if len(ids) > 1:
            raise WeightError(f"{text!r} begins {len(ids)} revisions: {', '.join(known[:16] for known in ids)}")
        if not ids:
            raise self.unknown(text)
        return ids[0]

    def unknown(self, text: str) -> WeightError:
        """The error for a name that is not here."""
        names = [pointer.name for pointer in self.pointers()]
        near = nearest(text, names)
        hint = f"; did you mean {near!r}?" if near else f"; there are: {', '.join(names[:8]) or 'none'}"
        return WeightError(f"no weights are named {text!r}, and no revision begins so{hint}")

    # --- records

    def ids(self) -> list[str]:
        """Every revision, pointed to or not, sorted."""
        return [file.removesuffix(_SUFFIX) for file in _list_files(self.records)]

    def contents(self, revision: str) -> RevisionContents:
        """The record, checked. Raises WeightError where it is gone or malformed, or can't be read."""
        known = self._known.get(revision)
        if known is not None:
            return known
        path = self._record_path(revision)
        try:
            data = _read(path)
        except FileNotFoundError:
            raise WeightError(f"revision {revision[:16]} is gone: {path} is not there") from None
        if digest_bytes(data) != revision:
            raise WeightError(f"{path}: {_DAMAGED}")
        contents = self._known[revision] = checked_record(path, _decode_record(path, data, RevisionRecord))
        return contents

    def add(self, record: RevisionRecord, leases: Leases) -> str:
        """Store a record, and lease it; its revision. Raises OSError, StoreFault."""
        data = msgspec.json.encode(record)
        revision = digest_bytes(data)
        path = self._record_path(revision)
        fsio.make_inner_dir(self.records)
        with fsio.folder_locked(self.records, exclusive=False):
            leases.take((revision,), strict=True)
            try:
                if file_ownership.read_regular(path, _MAX_FILE) == data:
                    return revision
            except FileNotFoundError:
                pass  # the usual case: it is new
            self._write(path, data)
        return revision

    def lease(self, revision: str, leases: Leases) -> None:
        """Keep a revision, and what it names, from ``gc``. Raises WeightError where it is gone, or can't be."""
        try:
            with fsio.folder_locked(self.records, exclusive=False):
                leases.take((revision,))
                self._record_path(revision).lstat()
        except FileNotFoundError:
            raise WeightError(f"revision {revision[:16]} is gone; it was removed meanwhile") from None
        except OSError as error:
            raise WeightError(f"revision {revision[:16]} can't be held: {error}") from error

    def list_needed(self, on_damaged: Callable[[str], None]) -> frozenset[Digest]:
        """Everything that the records may name, also those of another version. on_damaged: told of one that is not
        what it was: what that needs is not all known. Raises OSError where there may be records that are not seen.
        """
        digests: set[Digest] = set()
        for file in fsio.names_in(self.records, _FILE, must_list=True):
            path, revision = self.records / file, file.removesuffix(_SUFFIX)
            with contextlib.suppress(FileNotFoundError):
                data = file_ownership.read_regular(path, _MAX_FILE)
                digests.update(_named_in(data))
                if digest_bytes(data) != revision:
                    on_damaged(f"{path}: {_DAMAGED}")
        return frozenset(digests)

    def sweep(self, leased: LeasedArtifacts) -> Swept:
        """Remove the records that no name stands for and no process holds. Raises WeightError where a name can't be
        read, OSError.
        """
        removed: list[str] = []
        in_use: list[str] = []
        loose: set[Digest] = set()
        try:
            with fsio.folder_locked(self.records, exclusive=True):
                leased.refresh()
                named = {pointer.revision for pointer in self.pointers()}
                for revision in self.ids():
                    if revision in named:
                        continue
                    if revision in leased:
                        in_use.append(revision)
                        continue
                    path = self._record_path(revision)
                    loose.update(_named_in(file_ownership.read_regular(path, _MAX_FILE)))
                    os.unlink(path)
                    self._known.pop(revision, None)
                    removed.append(revision)
        except FileNotFoundError:
            return Swept()  # there was never any
        return Swept(tuple(removed), tuple(in_use), frozenset(loose))

    def _write(self, path: Path, data: bytes) -> None:
        fsio.make_inner_dir(path.parent)
        fsio.make_dir(self._tmp)
        with fsio.Staging(self._tmp) as staged:
            staged.write(data)
            staged.commit(path, mode=0o444, fsync=self._fsync)

    def _name_path(self, name: str) -> Path:
        return self.names / f"{name.replace('/', '%2F')}{_SUFFIX}"

    def _record_path(self, revision: str) -> Path:
        return self.records / f"{revision}{_SUFFIX}"


def check_name(name: str) -> None:
    """Raise UsageError for what can't be the name of weights."""
    if not isinstance(name, str) or not _is_name(name):
        raise UsageError(
            f"a name of weights expected letters, digits and ._+@=- in parts between '/', {MAX_NAME} characters at "
            f"most, each part beginning with a letter or a digit; found {name!r}"
        )


def _is_name(text: str) -> bool:
    return len(text) <= MAX_NAME and _NAME.fullmatch(text) is not None


def _read(path: Path) -> bytes:
    """Read a file of this folder. Raises WeightError for other kinds, FileNotFoundError, NotADirectoryError."""
    try:
        return file_ownership.read_regular(path, _MAX_FILE)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise WeightError(f"{path} can't be read: {error.strerror}") from error


def _list_files(folder: Path) -> list[str]:
    """Return the files in a folder. Raises WeightError if it can't be read, as their records would seem to be gone."""
    try:
        return fsio.names_in(folder, _FILE, must_list=True)
    except OSError as error:
        raise WeightError(f"{folder} can't be listed: {error.strerror}") from error


def _named_in(data: bytes) -> Iterator[Digest]:
    """Everything in a record that may be the digest of an object, whatever its version is."""
    return map(bytes.decode, _DIGEST.findall(data))


def _decode_record(path: Path, data: bytes, kind: type[T]) -> T:
    """A record of this version. Raises WeightError."""
    try:
        version = msgspec.json.decode(data, type=_RevisionVersion).version
        if version != VERSION:
            raise WeightError(f"{path}: expected version {VERSION}, found {version}: another cachec wrote it")
        return msgspec.json.decode(data, type=kind)
    except MALFORMED_JSON as error:
        raise WeightError(f"{path}: malformed: {error}; remove it, and add the weights again") from error


def checked_record(path: str | os.PathLike[str], record: RevisionRecord) -> RevisionContents:
    """The contents of a record, which is at ``path``. Raises WeightError for what does not fit together."""
    entries = record.owned or record.placed
    names = [entry.spec.name for entry in entries]
    if (record.owned and record.placed) or names != sorted(set(names)):
        raise WeightError(f"{path}: expected names in order, each once, found otherwise")
    if any("\0" in file.path for file in record.files):
        raise WeightError(f"{path}: expected paths, found one with a NUL")
    sizes = {tensor.digest: tensor.spec.nbytes for tensor in record.owned}
    numbers = {digest: number for number, digest in enumerate(sorted(sizes))}
    tensors: dict[str, Tensor] = {}
    try:
        for tensor in record.owned:
            tensors[tensor.spec.name] = checked_tensor(
                tensor.spec.name, tensor.spec, sizes[tensor.digest], "its object", numbers[tensor.digest]
            )
        for placed in record.placed:
            tensors[placed.spec.name] = _place_tensor(placed, record.files)
        layout = Layout(tensors).with_ties(stated_ties(entry.spec for entry in entries))
    except UsageError as error:
        raise WeightError(f"{path}: {error}") from error
    return RevisionContents(record, layout, tuple(ArtifactRef(digest, sizes[digest]) for digest in numbers))


def _place_tensor(placed: PlacedTensor, files: tuple[PlacedFile, ...]) -> Tensor:
    spec = placed.spec
    checked = checked_tensor(spec.name, spec, spec.nbytes, "its file", placed.file)
    if placed.file >= len(files) or placed.offset + spec.nbytes > files[placed.file].size:
        raise UsageError(f"weight {spec.name!r}: expected within one of {len(files)} files, found outside")
    place = (placed.offset, placed.file)
    return Tensor(checked.dtype, checked.shape, checked.nbytes, *place, checked.shard, checked.layout)
