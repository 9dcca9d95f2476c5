"""Entries as one file, to be kept between two runs of a CI job: saved, bounded, checked at every byte, restored.

An archive is an uncompressed tar (POSIX.1-1988 ustar headers, sizes from 8 GiB on in base 256 as GNU tar writes them)
of regular files in this order:

    cachec.json              {"format": "cachec-archive", "version": 1}
    objects/<64 hex>         artifacts, each named by the BLAKE3-256 of its content
    entries/<64 hex>.json    an Entry each (model.py), named by its key

and two blocks of zeros. Anything else is refused: another type of member, another name or order, a name that comes
twice, a digest that does not fit, an entry whose artifacts are neither here nor in the store, a missing end. Nothing is
unpacked to a path of the archive's choosing. Whoever can write the archive decides what hits: restore only what a job
of your own has saved.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
from blake3 import blake3

from cachec.base import fsio
from cachec.errors import CachecError, StoreFault
from cachec.model import MAX_TRACES, RECORD_VERSION, ArtifactRef, Entry, Fault, Trace, from_json
from cachec.store.store import Store, references

VERSION = 1

_BLOCK = tarfile.BLOCKSIZE
_END = b"\0" * (2 * _BLOCK)
_HEAD = "cachec.json"
_OBJECT = re.compile(r"objects/([0-9a-f]{64})")
_ENTRY = re.compile(r"entries/([0-9a-f]{64})\.json")
#: Bytes of one entry: far above any that is written, and small enough to be read at once.
_ENTRY_MAX = 1 << 24
_CHUNK = 1 << 20


class ArchiveError(CachecError):
    """An archive is damaged, of another version, or no archive; no entry of it was restored."""


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    version: int


class Saved(NamedTuple):
    """What an archive holds. left_out: entries that did not fit. size: bytes of the file."""

    entries: int
    left_out: int
    size: int


# --- saving


def save(store: Store, keys: Iterable[str], path: str | os.PathLike[str], *, max_size: int = 0) -> Saved:
    """Write the entries of ``keys`` to ``path``, replacing it at once; those that are gone, or damaged, are left out.

    max_size: bytes of the archive, 0 for no limit; entries that save most seconds a byte come first. Raises StoreFault
    where the store can't be read, OSError where ``path`` can't be written.
    """
    entries = [entry for key in dict.fromkeys(keys) if (entry := _usable(store, key)) is not None]
    chosen, objects = _fitting(entries, max_size)
    target = os.path.abspath(path)
    with fsio.Staging(os.path.dirname(target), ".cachec-archive-") as staged:
        _member(staged, _HEAD, msgspec.json.encode(_Head(format="cachec-archive", version=VERSION)))
        for ref in objects.values():
            staged.write(_header(f"objects/{ref.digest}", ref.size))
            with store.objects.path(ref).open("rb") as file:
                left = ref.size
                while chunk := file.read(min(_CHUNK, left)):
                    staged.write(chunk)
                    left -= len(chunk)
            if left:
                raise StoreFault(Fault.ARTIFACT_CORRUPT, f"object {ref.digest} was cut while it was saved")
            staged.write(_padding(ref.size))
        for entry in chosen:
            _member(staged, f"entries/{entry.key}.json", msgspec.json.encode(entry))
        staged.write(_END)
        size = os.fstat(staged.fd).st_size
        staged.commit(target, mode=0o600, fsync=False)
    return Saved(len(chosen), len(entries) - len(chosen), size)


def _usable(store: Store, key: str) -> Entry | None:
    """The entry with all its artifacts in place, or None."""
    try:
        entry = store.lookup(key)
        if entry is None or not entry.traces:
            return None
        for ref in references(entry):
            store.objects.path(ref)
    except StoreFault:
        return None
    return entry


def _fitting(entries: list[Entry], max_size: int) -> tuple[list[Entry], dict[str, ArtifactRef]]:
    def worth(entry: Entry) -> float:
        return max(trace.seconds for trace in entry.traces) / (1 + sum(ref.size for ref in references(entry)))

    chosen: list[Entry] = []
    objects: dict[str, ArtifactRef] = {}
    size = 2 * _BLOCK + len(_END)
    for entry in sorted(entries, key=worth, reverse=True):
        new = {ref.digest: ref for ref in references(entry) if ref.digest not in objects}
        more = sum(_stored(ref.size) for ref in new.values()) + _stored(len(msgspec.json.encode(entry)))
        if max_size and size + more > max_size:
            continue
        size += more
        objects |= new
        chosen.append(entry)
    return chosen, objects


def _stored(nbytes: int) -> int:
    return _BLOCK + nbytes + len(_padding(nbytes))


def _padding(nbytes: int) -> bytes:
    return b"\0" * (-nbytes % _BLOCK)


def _header(name: str, nbytes: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = nbytes
    info.mode = 0o444
    return info.tobuf(tarfile.GNU_FORMAT)


def _member(staged: fsio.Staging, name: str, data: bytes) -> None:
    staged.write(_header(name, len(data)) + data + _padding(len(data)))


# --- restoring


def restore(store: Store, path: str | os.PathLike[str]) -> int:
    """Add the entries of an archive to the store; how many. A run that the store knows stays as it is there.

    Raises ArchiveError for an archive that is not whole, before any entry of it is visible; FileNotFoundError where
    there is none; StoreFault where the store can't be written.
    """
    store.prepare()
    with Path(path).open("rb") as file:
        reader = _ArchiveReader(file, os.fspath(path))
        entries = [*_read(reader, store)]
    for entry in entries:
        known = {trace.reads for trace in _present(store, entry.key)}
        for trace in reversed(entry.traces):
            if trace.reads in known:
                continue
            store.publish(entry.key, entry.stage, entry.tags, entry.parts, trace)
    return len(entries)


def _present(store: Store, key: str) -> tuple[Trace, ...]:
    try:
        entry = store.lookup(key)
    except StoreFault:
        return ()  # a damaged row, which publishing replaces
    return () if entry is None else entry.traces


def _read(reader: _ArchiveReader, store: Store) -> Iterator[Entry]:
    """All entries, once the whole archive was found right. Artifacts are stored on the way: nothing refers
    to them before the entries do."""
    name, nbytes = reader.member()
    if name != _HEAD or nbytes > _BLOCK:
        raise reader.refuse(f"it begins with {name[:80]!r}, not with {_HEAD}")
    head = from_json(reader.content(nbytes), _Head, reader.refuse, f"{_HEAD} is malformed")
    if (head.format, head.version) != ("cachec-archive", VERSION):
        what = f"{head.format!r} version {head.version}"
        raise reader.refuse(f"it is {what}; this reads cachec-archive version {VERSION}")
    objects: dict[str, int] = {}
    entries: dict[str, Entry] = {}
    while (member := reader.next()) is not None:
        name, nbytes = member
        if (match := _OBJECT.fullmatch(name)) and not entries and match[1] not in objects:
            _object(reader, store, match[1], nbytes)
            objects[match[1]] = nbytes
        elif (match := _ENTRY.fullmatch(name)) and match[1] not in entries:
            entries[match[1]] = _entry(reader, match[1], nbytes)
        else:
            raise reader.refuse(f"member {name[:80]!r} has no place there")
    for entry in entries.values():
        for ref in references(entry):
            if objects.get(ref.digest, -1) != ref.size:
                try:
                    store.objects.path(ref)
                except StoreFault:
                    words = f"entry {entry.key[:12]} needs object {ref.digest[:12]}, which is absent"
                    raise reader.refuse(words) from None
    yield from entries.values()


def _object(reader: _ArchiveReader, store: Store, digest: str, nbytes: int) -> None:
    hasher = blake3()
    with store.objects.staging() as writer:
        for chunk in reader.chunks(nbytes):
            writer.write(chunk)
            hasher.update(chunk)
        if hasher.hexdigest() != digest:
            raise reader.refuse(f"object {digest[:12]} has other content than its name says")
        writer.commit()


def _entry(reader: _ArchiveReader, key: str, nbytes: int) -> Entry:
    if nbytes > _ENTRY_MAX:
        raise reader.refuse(f"entry {key[:12]} has {nbytes} bytes; at most {_ENTRY_MAX} are read")
    entry = from_json(reader.content(nbytes), Entry, reader.refuse, f"entry {key[:12]} is malformed")
    if entry.key != key or entry.version != RECORD_VERSION or not 0 < len(entry.traces) <= MAX_TRACES:
        raise reader.refuse(
            f"entry {key[:12]} is of key {entry.key[:12]}, version {entry.version}, with {len(entry.traces)} runs; "
            f"this reads version {RECORD_VERSION} with 1 to {MAX_TRACES}"
        )
    return entry


class _ArchiveReader:
    """The members of an archive, one after the other. Sizes are believed only as far as the file goes."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._path = path
        self._left = os.fstat(file.fileno()).st_size

    def refuse(self, why: str) -> ArchiveError:
        return ArchiveError(f"{self._path} is refused: {why}; delete it, the next run saves a new one")

    def member(self) -> tuple[str, int]:
        """Name and size of the next member. Raises ArchiveError at the end."""
        following = self.next()
        if following is None:
            raise self.refuse("it is empty")
        return following

    def next(self) -> tuple[str, int] | None:
        """Name and size of the next member; None at the end."""
        block = self._take(_BLOCK)
        if block == _END[:_BLOCK]:
            if self._take(_BLOCK) != block or self._left:
                raise self.refuse("there is more after its end")
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise self.refuse(f"a header is malformed: {error}") from None
        if info.type != tarfile.REGTYPE:
            raise self.refuse(f"member {info.name[:80]!r} is no regular file")
        if not 0 <= info.size <= self._left:
            raise self.refuse(f"member {info.name[:80]!r} says {info.size} bytes, {self._left} are left")
        return info.name, info.size

    def content(self, nbytes: int) -> bytes:
        return b"".join(self.chunks(nbytes))

    def chunks(self, nbytes: int) -> Iterator[bytes]:
        """The content of the member, in pieces, and its padding away."""
        left = nbytes
        while left:
            yield (chunk := self._take(min(_CHUNK, left)))
            left -= len(chunk)
        if self._take(-nbytes % _BLOCK).strip(b"\0"):
            raise self.refuse("its padding is not zeros")

    def _take(self, nbytes: int) -> bytes:
        data = self._file.read(nbytes)
        self._left -= len(data)
        if len(data) != nbytes:
            raise self.refuse("it is cut")
        return data
