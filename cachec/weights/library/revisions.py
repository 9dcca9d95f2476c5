"""The records of the store's own weights: what a revision consists of, and which revision a name stands for.

    names/<name>.json           a pointer: replaced or removed as a whole; ``/`` in a name is written ``%2F``
    revisions/<64 hex>.json     a record, immutable, named by the BLAKE3 of its bytes; so equal weights are one revision

A record says which tensors there are, by name: either as digests of side files (``owned``), or as places in files that
are the user's (``files``) with the state in which these were. All JSON; what is malformed, or of another version, is an
error, and then nothing is swept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from cachec.base import fsio
from cachec.base.hashing import digest_bytes
from cachec.errors import UsageError, WeightError
from cachec.model import Digest, WeightSpec
from cachec.weights.layout import Layout, stated_ties
from cachec.weights.tensor import Tensor, checked_tensor

VERSION = 1
MAX_NAME = 120
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@=-]*(/[A-Za-z0-9][A-Za-z0-9._+@=-]*)*")
_PREFIX = re.compile(r"[0-9a-f]{4,64}")
_SUFFIX = ".json"

T = TypeVar("T", bound="Pointer | Record")

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Versioned(msgspec.Struct):
    version: int


class OwnedTensor(msgspec.Struct, frozen=True, gc=False):
    """A weight whose bytes are the side file of that digest."""

    spec: WeightSpec
    digest: Digest


class PlacedTensor(msgspec.Struct, frozen=True, gc=False):
    """A weight whose bytes are at ``offset`` of a file of the record."""

    spec: WeightSpec
    file: _Count
    offset: _Count


class PlacedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of the user's as it was when the revision was made; no device number, for that changes at a reboot.

    checksum: what the checkpoint states of all its bytes, as in ``OpenedFile``.
    """

    path: str
    ino: int
    size: _Count
    mtime_ns: int
    ctime_ns: int
    header_nbytes: _Count
    header_digest: str
    checksum: Annotated[str, msgspec.Meta(pattern="^((md5|sha1):.*|crc32:members)?$")] = ""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a revision consists of, sorted by name. Either ``owned``, or ``placed`` in ``files``."""

    version: int
    owned: tuple[OwnedTensor, ...] = ()
    placed: tuple[PlacedTensor, ...] = ()
    files: tuple[PlacedFile, ...] = ()


class Pointer(msgspec.Struct, frozen=True):
    """What a name stands for. created: Unix time in seconds. source: where the weights came from, for people."""

    version: int
    name: str
    revision: Digest
    created: float
    source: str
    owned: bool
    count: _Count
    nbytes: _Count


class Contents(NamedTuple):
    """A record that was checked.

    layout: ``Tensor.file`` is a number in ``digests`` (owned) or in ``record.files``. digests: (digest, bytes), sorted.
    """

    record: Record
    layout: Layout
    digests: tuple[tuple[str, int], ...]

    @property
    def by_name(self) -> Mapping[str, str]:
        """The digest of each weight; empty for a revision in place."""
        return MappingProxyType({tensor.spec.name: tensor.digest for tensor in self.record.owned})


class Use:
    """A shared lock on a record: nobody sweeps what it names while this is open."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        """Let go. May be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class Revisions:
    """Names and records in a folder. Takes no lock of the store; who changes something holds it."""

    def __init__(self, folder: str | os.PathLike[str], *, fsync: bool) -> None:
        self.names = Path(folder) / "names"
        self.records = Path(folder) / "revisions"
        self._tmp = Path(folder) / "tmp"
        self._fsync = fsync
        self._known: dict[str, Contents] = {}

    # --- names

    def pointer(self, name: str) -> Pointer | None:
        """What ``name`` stands for. Raises WeightError where the pointer is malformed."""
        path = self._name_path(name)
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _decoded(path, data, Pointer)

    def pointers(self) -> Iterator[Pointer]:
        """Every name, sorted."""
        for file in sorted(_listed(self.names)):
            path = self.names / file
            with contextlib.suppress(FileNotFoundError):
                yield _decoded(path, path.read_bytes(), Pointer)

    def point(self, pointer: Pointer) -> None:
        """Let a name stand for a revision from now on."""
        self._write(self._name_path(pointer.name), msgspec.json.encode(pointer))

    def unpoint(self, name: str) -> None:
        """Forget a name. Raises WeightError where there is none of it."""
        try:
            os.unlink(self._name_path(name))
        except FileNotFoundError:
            raise self.unknown(name) from None

    def resolve(self, text: str) -> str:
        """The revision that a name, or the first digits of a revision (4 at least), stands for. Raises WeightError."""
        pointer = self.pointer(text) if _is_name(text) else None
        if pointer is not None:
            return pointer.revision
        found = [known for known in self.ids() if known.startswith(text)] if _PREFIX.fullmatch(text) else []
        if len(found) > 1:
            raise WeightError(f"{text!r} begins {len(found)} revisions: {', '.join(known[:16] for known in found)}")
        if not found:
            raise self.unknown(text)
        return found[0]

    def unknown(self, text: str) -> WeightError:
        """The error for a name that is not here."""
        import difflib

        names = [pointer.name for pointer in self.pointers()]
        near = difflib.get_close_matches(text, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(names[:8]) or 'none'}"
        return WeightError(f"no weights are named {text!r}, and no revision begins so{hint}")

    # --- records

    def ids(self) -> list[str]:
        """Every revision, pointed to or not, sorted."""
        return sorted(file.removesuffix(_SUFFIX) for file in _listed(self.records))

    def contents(self, revision: str) -> Contents:
        """The record, checked. Raises WeightError where it is gone or malformed."""
        known = self._known.get(revision)
        if known is not None:
            return known
        path = self._record_path(revision)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise WeightError(f"revision {revision[:16]} is gone: {path} is not there") from None
        if digest_bytes(data) != revision:
            raise WeightError(f"{path}: damaged: its bytes are not those that its name says; add the weights again")
        contents = self._known[revision] = _checked(path, _decoded(path, data, Record))
        return contents

    def add(self, record: Record) -> str:
        """Store a record; its revision."""
        data = msgspec.json.encode(record)
        revision = digest_bytes(data)
        path = self._record_path(revision)
        try:
            if path.read_bytes() == data:
                return revision
        except FileNotFoundError:
            pass  # the usual case: it is new
        self._write(path, data)
        return revision

    def use(self, revision: str) -> Use:
        """Keep a revision from being swept. Raises WeightError where it is gone."""
        path = self._record_path(revision)
        while True:
            try:
                fd = fsio.open_read(path)
            except FileNotFoundError:
                raise WeightError(f"revision {revision[:16]} is gone; it was removed meanwhile") from None
            use = Use(fd)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if _leads_to(path, fd):  # else it was swept, or written anew, between the open and the lock
                return use
            use.close()

    def sweep(self, revision: str) -> bool:
        """Remove a record that no name stands for, unless somebody uses it; whether it is gone."""
        path = self._record_path(revision)
        fd = fsio.open_read(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        self._known.pop(revision, None)
        return True

    def _write(self, path: Path, data: bytes) -> None:
        fsio.make_dir(path.parent)
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


def _listed(folder: Path) -> list[str]:
    try:
        return [file for file in os.listdir(folder) if file.endswith(_SUFFIX) and not file.startswith(".")]
    except FileNotFoundError:
        return []


def _leads_to(path: Path, fd: int) -> bool:
    try:
        return fsio.identity(path)[:2] == fsio.identity(fd)[:2]
    except FileNotFoundError:
        return False


def _decoded(path: Path, data: bytes, kind: type[T]) -> T:
    """A record of this version. Raises WeightError."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != VERSION:
            raise WeightError(f"{path}: expected version {VERSION}, found {version}: another cachec wrote it")
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WeightError(f"{path}: malformed: {error}; remove it, and add the weights again") from error


def _checked(path: Path, record: Record) -> Contents:
    """The contents of a record. Raises WeightError for what does not fit together."""
    entries = record.owned or record.placed
    names = [entry.spec.name for entry in entries]
    if (record.owned and record.placed) or names != sorted(set(names)):
        raise WeightError(f"{path}: expected names in order, each once, found otherwise")
    sizes = {tensor.digest: tensor.spec.nbytes for tensor in record.owned}
    numbers = {digest: number for number, digest in enumerate(sorted(sizes))}
    tensors: dict[str, Tensor] = {}
    try:
        for tensor in record.owned:
            tensors[tensor.spec.name] = checked_tensor(
                tensor.spec.name, tensor.spec, sizes[tensor.digest], "its side file", numbers[tensor.digest]
            )
        for placed in record.placed:
            tensors[placed.spec.name] = _placed(placed, record.files)
        layout = Layout(tensors).tied(stated_ties(entry.spec for entry in entries))
    except UsageError as error:
        raise WeightError(f"{path}: {error}") from error
    return Contents(record, layout, tuple((digest, sizes[digest]) for digest in numbers))


def _placed(placed: PlacedTensor, files: tuple[PlacedFile, ...]) -> Tensor:
    spec = placed.spec
    checked = checked_tensor(spec.name, spec, spec.nbytes, "its file", placed.file)
    if placed.file >= len(files) or placed.offset + spec.nbytes > files[placed.file].size:
        raise UsageError(f"weight {spec.name!r}: expected within one of {len(files)} files, found outside")
    place = (placed.offset, placed.file)
    return Tensor(checked.dtype, checked.shape, checked.nbytes, *place, checked.shard, checked.layout)
