"""The store: artifacts and index as one unit.

    index/ objects/ trees/ locks/ tmp/ log/ weights/      in the cache's folder, each of mode 0700

Rows of the index, all with the stage as their tag:

    entry:<namespace>:<key>         an Entry
    recent:<namespace>:<stage>      a Recent
    quarantine:<namespace>:<key>    a Quarantined: out of reach of every lookup

``%`` and ``:`` in a namespace are written ``%25`` and ``%3A``. The value of a row:

    bytes 0-5     ``cachec``
    byte  6       RECORD_VERSION; a row of another version is a miss
    bytes 7-38    BLAKE3-256 of the rest: SQLite has no checksums, so damage to a page could pass for another value
    bytes 39-     the record, as JSON (RFC 8259)

Order of publication: the artifacts are in place before ``publish`` is called (flushed first with ``fsync``), then entry
and recent row come in one transaction. A process that dies anywhere leaves objects that nothing refers to, at worst.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from blake3 import blake3

from cachec import fsio
from cachec.errors import StoreFault
from cachec.hashing import FileDigests
from cachec.index import DiskcacheIndex, Index
from cachec.locks import KeyLock, Locks
from cachec.model import (
    MAX_TRACES,
    RECORD_VERSION,
    ArtifactRef,
    Digest,
    Entry,
    Fault,
    Part,
    Recent,
    Trace,
    artifacts,
)
from cachec.objects import Objects

T = TypeVar("T")

#: Keys kept in the recent row of a stage.
RECENT_KEYS = 64

FOLDERS = ("index", "objects", "trees", "locks", "tmp", "log", "weights")

_MAGIC = b"cachec"
_HEADER = len(_MAGIC) + 1 + 32
#: Decoded entries, and decoded lists of parts, kept in memory.
_DECODED_MAX = 1024
_PARTS_MAX = 256


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that was put away because it was found to be wrong. row: its value as it was, decodable or not."""

    version: int
    key: Digest
    stage: str
    reason: str
    time: float
    row: bytes


class Store:
    """Everything under one folder, in one namespace. Opening it reads and makes nothing.

    Every method raises StoreFault, and nothing else, where the store itself fails.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        namespace: str = "default",
        *,
        fsync: bool = False,
        on_fault: Callable[[Fault, str], None] | None = None,
        index: Index | None = None,
        mounts: fsio.Mounts | None = None,
    ) -> None:
        """on_fault: told of the faults that are got over here, such as a damaged row that a new one replaces."""
        self.folder = Path(folder)
        self.namespace = namespace
        self._on_fault = on_fault or (lambda _fault, _detail: None)
        mounts = mounts or fsio.Mounts()
        self.index: Index = index or DiskcacheIndex(
            self.folder / "index", fsync=fsync, mounts=mounts, on_fault=self._on_fault
        )
        self.digests = FileDigests(self.index, mounts)
        self.objects = Objects(self.folder / "objects", self.folder / "tmp", self.digests, fsync=fsync)
        self.locks = Locks(self.folder / "locks")
        quoted = namespace.replace("%", "%25").replace(":", "%3A")
        self._entry = f"entry:{quoted}:"
        self._recent = f"recent:{quoted}:"
        self._quarantine = f"quarantine:{quoted}:"
        self._decoded: OrderedDict[str, tuple[bytes, Entry]] = OrderedDict()
        self._decoded_lock = threading.Lock()
        self._parts: OrderedDict[str, tuple[Part, ...]] = OrderedDict()

    # --- looking up

    def lookup(self, key: str) -> Entry | None:
        """The entry under ``key``, or None. The index is read each time; an equal row is not decoded again.

        Raises StoreFault ROW_REFUSED, ROW_CORRUPT, ROW_VERSION or ROW_FOREIGN for a row that can't be used.
        """
        row = self.index.read(self._entry + key)
        if row is None:
            self.index.refresh()  # the file may have been deleted or replaced since it was opened
            row = self.index.read(self._entry + key)
            if row is None:
                return None
        return self._decode(key, row)

    def _decode(self, key: str, row: bytes) -> Entry:
        with self._decoded_lock:
            known = self._decoded.get(key)
            if known is not None and known[0] == row:
                self._decoded.move_to_end(key)
                return known[1]
        entry = _unpack(row, Entry, key)
        if entry.key != key:
            raise StoreFault(Fault.ROW_FOREIGN, f"the row of {key} holds the entry of {entry.key}")
        with self._decoded_lock:
            self._decoded[key] = row, entry
            if len(self._decoded) > _DECODED_MAX:
                self._decoded.popitem(last=False)
        return entry

    def recent(self, stage: str) -> tuple[Digest, ...]:
        """The newest keys of a stage, newest first, 64 at most."""
        row = self.index.read(self._recent + stage)
        return () if row is None else self._recent_of(stage, row)

    def _recent_of(self, stage: str, row: bytes) -> tuple[Digest, ...]:
        found = _unpack(row, Recent, stage)
        if found.stage != stage:
            raise StoreFault(Fault.ROW_FOREIGN, f"the recent row of {stage} is that of {found.stage}")
        return found.keys

    def parts(self, entry: Entry) -> tuple[Part, ...]:
        """The named parts of an entry's key. Raises StoreFault where their artifact is gone or is no list of parts."""
        known = self._parts.get(entry.parts.digest)
        if known is not None:
            return known
        try:
            parts = msgspec.json.decode(self.objects.read(entry.parts), type=tuple[Part, ...])
        except msgspec.MsgspecError as error:
            detail = f"artifact {entry.parts.digest} is no list of parts: {error}"
            raise StoreFault(Fault.ARTIFACT_CORRUPT, detail) from error
        with self._decoded_lock:
            self._parts[entry.parts.digest] = parts
            if len(self._parts) > _PARTS_MAX:
                self._parts.popitem(last=False)
        return parts

    def content(self, digest: Digest) -> bytes | None:
        """The content of an artifact by its digest alone; None where there is none."""
        return self.objects.content(digest)

    def entries(self) -> Iterator[Entry]:
        """All entries of this namespace in the order of their keys; one that can't be used is counted and left out."""
        for name in self.index.keys(prefix=self._entry):
            key = name.removeprefix(self._entry)
            try:
                row = self.index.read(name)
                if row is not None:
                    yield self._decode(key, row)
            except StoreFault as fault:
                self._on_fault(fault.fault, fault.detail)

    def quarantined(self) -> Iterator[Quarantined]:
        """All entries that were put away; a row that can't be read is counted and left out."""
        for name in self.index.keys(prefix=self._quarantine):
            try:
                row = self.index.read(name)
                if row is not None:
                    yield _unpack(row, Quarantined, name)
            except StoreFault as fault:
                self._on_fault(fault.fault, fault.detail)

    def find_artifact(self, digest: Digest) -> list[tuple[Digest, str]]:
        """(key, stage) of every entry that refers to the artifact."""
        return [
            (entry.key, entry.stage)
            for entry in self.entries()
            if any(ref.digest == digest for ref in references(entry))
        ]

    # --- changing

    def prepare(self) -> None:
        """Make the folders that are not there, each with mode 0700."""
        for name in FOLDERS:
            with fsio.faults(f"making {self.folder / name}"):
                fsio.make_dir(self.folder / name)

    def publish(self, key: Digest, stage: str, tags: tuple[str, ...], parts: ArtifactRef, trace: Trace) -> None:
        """Add a trace to the entry of ``key``, in front; one with equal reads gives way, and the oldest beyond 32.

        All artifacts must be in ``objects`` already. A present row that can't be used is counted and replaced.
        """

        def change() -> None:
            older = [old for old in self._present_traces(key) if old.reads != trace.reads]
            traces = (trace, *older)[:MAX_TRACES]
            entry = Entry(version=RECORD_VERSION, key=key, stage=stage, tags=tuple(tags), parts=parts, traces=traces)
            self.index.write(self._entry + key, _pack(entry), stage)
            keys = (key, *(old for old in self._present_keys(stage) if old != key))[:RECENT_KEYS]
            recent = Recent(version=RECORD_VERSION, stage=stage, keys=keys)
            self.index.write(self._recent + stage, _pack(recent), stage)

        self.prepare()
        self.index.atomically(change)

    def invalidate(self, key: Digest) -> bool:
        """Forget an entry; whether there was one. Its artifacts stay until ``gc``."""
        return self.index.delete(self._entry + key)

    def quarantine(self, key: Digest, reason: str) -> bool:
        """Put an entry away, so that it never hits again; whether there was one."""

        def change() -> bool:
            try:
                row = self.index.read(self._entry + key)
            except StoreFault as fault:
                if fault.fault is not Fault.ROW_REFUSED:
                    raise
                row = b""  # a foreign row is not copied
            if row is None:
                return False
            try:
                stage = self._decode(key, row).stage
            except StoreFault:
                stage = ""  # it is put away as it is, whatever it holds
            put_away = Quarantined(
                version=RECORD_VERSION, key=key, stage=stage, reason=reason, time=time.time(), row=row
            )
            self.index.write(self._quarantine + key, _pack(put_away), stage)
            return self.index.delete(self._entry + key)

        return self.index.atomically(change)

    def lock(self, key: Digest) -> KeyLock:
        """The lock of a key, not yet taken."""
        return self.locks.of(key)

    def close(self) -> None:
        """Write what is still to be remembered, and let go of the files."""
        self.index.close()

    def _present_traces(self, key: Digest) -> tuple[Trace, ...]:
        try:
            row = self.index.read(self._entry + key)
            return () if row is None else self._decode(key, row).traces
        except StoreFault as fault:
            return self._get_over(fault)

    def _present_keys(self, stage: str) -> tuple[Digest, ...]:
        try:
            return self.recent(stage)
        except StoreFault as fault:
            return self._get_over(fault)

    def _get_over(self, fault: StoreFault) -> tuple[()]:
        """A damaged row is counted and overwritten; any other fault ends the publication."""
        if fault.fault not in {Fault.ROW_CORRUPT, Fault.ROW_VERSION, Fault.ROW_FOREIGN, Fault.ROW_REFUSED}:
            raise fault
        self._on_fault(fault.fault, fault.detail)
        return ()


def references(entry: Entry) -> Iterator[ArtifactRef]:
    """Every artifact that an entry refers to; one may come twice."""
    yield entry.parts
    for trace in entry.traces:
        if trace.manifest is not None:
            yield trace.manifest
        yield from artifacts(trace.value)


def _pack(record: msgspec.Struct) -> bytes:
    body = msgspec.json.encode(record)
    return b"".join((_MAGIC, bytes((RECORD_VERSION,)), blake3(body).digest(), body))


def _unpack(row: bytes, kind: type[T], name: str) -> T:
    """The record in a row. Raises StoreFault ROW_CORRUPT or ROW_VERSION."""
    if not row.startswith(_MAGIC) or len(row) < _HEADER:
        raise StoreFault(Fault.ROW_CORRUPT, f"the row of {name} does not start like one of cachec's")
    version = row[len(_MAGIC)]
    if version != RECORD_VERSION:
        raise StoreFault(Fault.ROW_VERSION, f"the row of {name} has version {version}; this is {RECORD_VERSION}")
    body = memoryview(row)[_HEADER:]
    if blake3(body).digest() != row[len(_MAGIC) + 1 : _HEADER]:
        raise StoreFault(Fault.ROW_CORRUPT, f"the row of {name} does not match its checksum")
    try:
        record = msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreFault(Fault.ROW_CORRUPT, f"the row of {name} is no {kind.__name__}: {error}") from error
    found = getattr(record, "version", RECORD_VERSION)
    if found != RECORD_VERSION:
        raise StoreFault(Fault.ROW_VERSION, f"the row of {name} has version {found}; this is {RECORD_VERSION}")
    return record
