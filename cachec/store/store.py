"""The store: artifacts and index as one unit.

    index/ objects/ trees/ leases/ locks/ tmp/ log/ weights/      in the cache's folder, each of mode 0700

Rows of the index, all with the stage as their tag, and each with the version of its record before its name (index.py):

    entry:<namespace>:<key>         an Entry
    recent:<namespace>:<stage>      a Recent: see recent.py
    near:<namespace>:<32 hex>       one too, of calls that are alike
    summary:<namespace>:<key>       a CallSummary, and with it facts:<digest>: see summaries.py
    quarantine:<namespace>:<key>    a Quarantined: out of reach of every lookup

``%`` and ``:`` in a namespace are written ``%25`` and ``%3A``. The value of a row is described in packing.py. Rows of
other layers: ``usage:`` (usage.py), ``forgotten:...`` (forgotten.py), ``digest:...``, ``sha256:...`` (hashing.py),
``store:pin:...``, ``condemned:...`` and ``gc:`` (maintain), ``conclusion:...`` (conclusions.py).

Order of publication: the artifacts are in place before ``publish`` is called (flushed first with ``fsync``), then all
rows of the entry come in one transaction. A process that dies anywhere leaves objects that nothing refers to, at worst.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from cachec.base import file_ownership, fsio
from cachec.base.bounded_dict import BoundedDict
from cachec.base.hashing import FileDigests, Known
from cachec.base.mounts import Mounts
from cachec.errors import ConfigError, StoreFault
from cachec.model import (
    MALFORMED_JSON,
    MAX_TRACES,
    RECORD_VERSION,
    ArtifactRef,
    Digest,
    Entry,
    Fault,
    KeyDescription,
    Part,
    Trace,
    artifacts,
)
from cachec.store import store_size
from cachec.store.index import USED_SECONDS, DiskcacheIndex, Index, is_only_looking, used_file
from cachec.store.leases import Leases
from cachec.store.locks import KeyLock, Locks
from cachec.store.objects import Objects
from cachec.store.row_codec import pack, unpack
from cachec.store.single_flight import in_turn
from cachec.store.store_size import BoundedSink, Usage
from cachec.store.tombstones import forget, forgotten, latest

if TYPE_CHECKING:
    from cachec.store.nearest_keys import Near, Neighbours, Recent
    from cachec.store.search_index import SearchTerms

FOLDERS = ("index", "objects", "trees", "leases", "locks", "tmp", "log", "weights")

#: Folders of a store, with those that only some uses of it make.
PARTS = (*FOLDERS, "direct", "warm", "remote", "shared", "probes")

T = TypeVar("T")

#: Decoded entries, lists of parts and recent rows, kept in memory.
_DECODED_MAX = 1024
_PARTS_MAX = 256
_RECENTS_MAX = 64


class QuarantinedRow(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that was put away because it was found to be wrong."""

    version: int
    key: Digest
    stage: str
    reason: str
    time: float
    #: Its value as it was, decodable or not.
    row: bytes


class _KnownRow(msgspec.Struct, frozen=True):
    """A row of an entry as it was read."""

    #: Of the index before that.
    version: object
    row: bytes | None
    entry: Entry | None


class _KnownRecent(msgspec.Struct, frozen=True):
    """A row of recent keys as it was read."""

    #: Of the index before that; None where it is to be read again.
    version: object
    row: bytes | None
    recent: Recent


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
        mounts: Mounts | None = None,
        known: Known | None = None,
    ) -> None:
        """on_fault: told of what is got over here, a damaged row, say. known: digests that this process knows."""
        self.folder = Path(folder)
        self.namespace = namespace
        self.fsync = fsync
        self._on_fault = on_fault or (lambda _fault, _detail: None)
        self.mounts = mounts or Mounts()
        self.index: Index = index or DiskcacheIndex(
            self.folder / "index", fsync=fsync, mounts=self.mounts, on_fault=self._on_fault
        )
        self.locks = Locks(self.folder / "locks")
        self.digests = FileDigests(self.index, self.mounts, known, partial(in_turn, self.locks, self.index))
        self.leases = Leases(self.folder / "leases", self._on_fault)
        self.objects = Objects(
            self.folder / "objects", self.folder / "tmp", self.digests, fsync=fsync, leases=self.leases
        )
        #: The namespace as it is written in the names of rows, with a colon.
        self.quoted = namespace.replace("%", "%25").replace(":", "%3A") + ":"
        self._entry = f"entry:{self.quoted}"
        self._recent = f"recent:{self.quoted}"
        self._near = f"near:{self.quoted}"
        self._summary = f"summary:{self.quoted}"
        self._quarantine = f"quarantine:{self.quoted}"
        self._agrees = False
        self._noted = -USED_SECONDS  # Unix time at which this object looked last whether its use is noted
        self._bound: Callable[[Store, Usage | None], object] | None = None
        self._largest = 0
        self._published: tuple[Usage | None, ...] = ()  # the size of the store, as the last publication left it
        self._decoded: BoundedDict[_KnownRow] = BoundedDict(_DECODED_MAX)
        self._parts: BoundedDict[tuple[Part, ...]] = BoundedDict(_PARTS_MAX)
        self._recents: BoundedDict[_KnownRecent] = BoundedDict(_RECENTS_MAX)

    # --- looking up

    def lookup(self, key: str) -> Entry | None:
        """The entry under ``key``, or None.

        Its row is read unless nobody has changed the index since the last time; an equal row is not decoded again.
        Raises StoreFault ROW_REFUSED, ROW_CORRUPT, ROW_VERSION or ROW_FOREIGN for a row that can't be used.
        """
        if not 0 <= time.time() - self._noted < USED_SECONDS:
            self._note_use()
        version = self.index.version()
        known = self._decoded.get(key)
        if known is not None and version is not None and known.version == version:
            return known.entry
        row = self.index.read(self._entry + key)
        if row is not None:
            return self._decode(key, row, version)
        self._decoded.put(key, _KnownRow(version, None, None))
        return None

    def _decode(self, key: str, row: bytes, version: object = None) -> Entry:
        known = self._decoded.get(key)
        entry = known.entry if known is not None and known.row == row else None
        if entry is None:
            entry = unpack(row, Entry, key)
            if entry.key != key:
                raise StoreFault(Fault.ROW_FOREIGN, f"the row of {key} holds the entry of {entry.key}")
        self._decoded.put(key, _KnownRow(version, row, entry))
        return entry

    def entry_row(self, key: str) -> str:
        """The name of the row that holds the entry of ``key``."""
        return self._entry + key

    def row_in_file(self, name: str) -> str:
        """The name that a row has in the file of the index: it begins with the version of the records."""
        return self.index.row_name(name)

    def _note_use(self) -> None:
        """Note that this version is in use, by a file of which ``gc`` reads the time: at most once a day."""
        path = used_file(os.fspath(self.folder), RECORD_VERSION)
        if is_only_looking() or not os.path.isdir(os.path.dirname(path)):
            return
        self._noted = time.time()
        with contextlib.suppress(OSError):  # of a store that is only read, the newest row tells
            try:
                if time.time() - os.stat(path).st_mtime > USED_SECONDS:
                    os.utime(path)
            except FileNotFoundError:
                os.close(fsio.open_own(path, os.O_WRONLY))

    def recent(self, stage: str, alike: str = "") -> Recent:
        """The newest keys of a stage (alike: those of one row), and how near each is to another. Raises StoreFault.

        As in ``lookup``, nothing is read where nobody has changed the index since the last time: a publication goes on
        from the rows that its miss was explained by.
        """
        from cachec.store.nearest_keys import Recent  # on a miss only

        name = self._near + alike if alike else self._recent + stage
        version = self.index.version()
        known = self._recents.get(name)
        if known is not None and version is not None and known.version == version:
            return known.recent
        row = self.index.read(name)
        if row is None:
            record = Recent(stage=stage, alike=alike)
        elif known is not None and known.row == row:
            record = known.recent
        else:
            record = unpack(row, Recent, stage)
            if (record.stage, record.alike) != (stage, alike):
                raise StoreFault(Fault.ROW_FOREIGN, f"the row {name} is the recent row of {record.stage}")
        self._recents.put(name, _KnownRecent(version, row, record))
        return record

    def neighbours(self, stage: str, parts: Sequence[Part]) -> Neighbours:
        """The keys of a stage that one with these parts is to be compared with. Reads a few rows, whatever there is.

        Raises StoreFault.
        """
        from cachec.store.nearest_keys import neighbourhood, neighbours

        place = neighbourhood(stage, parts)
        return neighbours(place, {alike: self.recent(stage, alike) for alike in place.rows()}, parts)

    def nearest(self, ranked: Iterable[Near]) -> tuple[Digest, tuple[Part, ...]] | None:
        """Key and parts of the first of these keys that has not been evicted; None for none.

        Raises StoreFault where there are some, and no parts of any can be read.
        """
        unreadable: StoreFault | None = None
        for near in ranked:
            try:
                return near.key, self.parts(near)
            except StoreFault as fault:
                if fault.fault is not Fault.ARTIFACT_MISSING:
                    unreadable = fault
        if unreadable is not None:
            raise unreadable
        return None

    def parts(self, entry: Entry | Near) -> tuple[Part, ...]:
        """The named parts of an entry's key. Raises StoreFault where their artifact is gone or is no list of parts."""
        parts = self._parts.get(entry.parts.digest)
        if parts is None:
            parts = self.parts_of(entry.parts)
            self._parts.put(entry.parts.digest, parts)
        return parts

    def parts_of(self, ref: ArtifactRef) -> tuple[Part, ...]:
        """The parts in an artifact. Raises StoreFault as ``parts``; nothing is remembered."""
        return self._load_description(ref).parts

    def recipe(self, entry: Entry) -> bytes | None:
        """The recipe of an entry's newest run, None where it has none. Raises StoreFault as ``parts``."""
        recipe = bytes(self._load_description(entry.parts).recipe)
        return None if recipe == b"null" else recipe

    def _load_description(self, ref: ArtifactRef) -> KeyDescription:
        try:
            # A list is parts alone: of a command, or of an older entry.
            parts = msgspec.json.decode(self.objects.read(ref), type=tuple[Part, ...] | KeyDescription)
        except MALFORMED_JSON as error:
            raise StoreFault(Fault.ARTIFACT_CORRUPT, f"artifact {ref.digest} is no list of parts: {error}") from error
        return parts if isinstance(parts, KeyDescription) else KeyDescription(parts)

    def content(self, digest: Digest) -> bytes | None:
        """The content of an artifact by its digest alone; None where there is none."""
        return self.objects.content(digest)

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """The entries of this namespace, or those whose keys begin with ``prefix``, in the order of their keys.

        One that can't be used is counted and left out.
        """
        for name, row in self.index.rows(self._entry + prefix):
            try:
                if row is None:
                    raise StoreFault(Fault.ROW_REFUSED, f"row {name} is not plain bytes")
                yield self._decode(name.removeprefix(self._entry), row)
            except StoreFault as fault:
                self._on_fault(fault.fault, fault.detail)

    def find_artifact(self, digest: Digest) -> list[tuple[Digest, str]]:
        """(key, stage) of every entry that refers to the artifact."""
        return [
            (entry.key, entry.stage)
            for entry in self.entries()
            if digest == entry.parts.digest
            or any(ref.digest == digest for trace in entry.traces for ref in products(trace))
        ]

    # --- changing

    def prepare(self) -> None:
        """Make the folders that are not there, each with mode 0700 (2770 in a shared store).

        A user who has set ``shared = "trusted"`` agrees to share the store: that is recorded here.
        """
        for name in FOLDERS:
            place = os.path.join(self.folder, name)
            if not os.path.isdir(place):
                with fsio.faults(f"making {place}"):
                    fsio.make_dir(place)
        if self._agrees:
            self._agrees = False
            self.record_agreement()

    def record_agreement(self) -> None:
        """Record that this user agrees to share the store with its group. A fault is counted.

        A store that is only read keeps no record: there the setting is needed each time.
        """
        from cachec.store import sharing  # of a store that is shared only

        try:
            sharing.agree(os.fspath(self.folder))
        except OSError as error:
            if not fsio.is_unwritable(error):
                fault = fsio.fault(error, f"recording in {self.folder} that it is shared")
                self._on_fault(fault.fault, fault.detail)

    def refuse_foreign(self, shared: str = "auto") -> None:
        """Raise ConfigError for a store that others than this user and root could have filled, unless this user has
        agreed to share it; and for one whose parts are links, in any case.

        shared: the setting. ``auto``: as the store's own record says (sharing.py). ``trusted``: this user agrees, which
        ``prepare`` and ``record_agreement`` record. ``no``: no record counts.
        """
        self._agrees = shared == "trusted"
        why = self.why_refused(shared)
        if why:
            raise ConfigError(f"the store {self.folder} is refused: {why}")

    def why_refused(self, shared: str) -> str:
        """Say why ``refuse_foreign`` refuses the store, and the way out; empty where it does not."""
        folder = os.fspath(self.folder)
        try:
            statuses = {}
            for name in PARTS:
                part = os.path.join(folder, name)
                try:
                    statuses[part] = os.lstat(part)
                except FileNotFoundError:
                    continue
                if not stat.S_ISDIR(statuses[part].st_mode):
                    return f"{part} is no folder; remove it, if it is yours"
            if shared == "trusted":
                return ""
            why = file_ownership.why_distrusted(folder)
            open_ = {part: file_ownership.why_foreign(status) for part, status in statuses.items()}
            why = why or next((f"{part} {each}" for part, each in open_.items() if each), "")
            if not why:
                return ""
            from cachec.store import sharing  # of a store that is shared only

            top = os.stat(folder) if os.path.isdir(folder) else None
            group = sharing.agreed_group(folder) if shared == "auto" and top is not None else None
            if group is not None:
                why = sharing.why_not_groups(folder, statuses, group)
        except OSError:
            return ""  # not made yet, or out of reach: whoever reads or writes in it is told
        if not why:
            return ""
        if shared == "no":
            return (
                f'{why}; it is refused by CACHEC_SHARED=no (or shared = "no" in the configuration), which accepts '
                "no store that others can write. Use a store of your own (CACHEC_DIR)"
            )
        if top is not None and fsio.is_shared(top) and group is None and not top.st_mode & stat.S_IWOTH:
            return (
                f"{why}: it is shared with the group {top.st_gid}, whose members decide what a hit is, and you have "
                "not agreed to that. If you trust them with your builds, run `CACHEC_SHARED=trusted cachec doctor` "
                "once, and the store records it; else use a store of your own (CACHEC_DIR)"
            )
        if group is not None:
            return (
                f"{why}, so others than the group {group}, which you share it with, decide what a hit is; chown or "
                "chmod o-w it, or use a store of your own (CACHEC_DIR)"
            )
        return (
            f"{why}, so others decide what a hit is; use a store of your own "
            "(CACHEC_DIR), make this one yours (chown, chmod go-w), or, if all who can write it are trusted with "
            "your builds, set CACHEC_SHARED=trusted"
        )

    def publish(
        self,
        key: Digest,
        stage: str,
        tags: tuple[str, ...],
        parts: ArtifactRef,
        trace: Trace,
        *,
        search_parts: Sequence[Part] | None = None,
    ) -> None:
        """Add a trace to the entry of ``key``, in front; one with equal reads gives way, and the oldest beyond 32.

        All artifacts must be in ``objects`` already. search_parts: the parts in the artifact ``parts``, read where not
        given. A present row that can't be used is counted and replaced.
        """
        from cachec.store.search_index import search_terms

        def change() -> Usage | None:
            entry = self._readable(lambda: self.lookup(key))
            older = [old for old in (entry.traces if entry is not None else ()) if old.reads != trace.reads]
            traces = (trace, *older)[:MAX_TRACES]
            entry = Entry(version=RECORD_VERSION, key=key, stage=stage, tags=tuple(tags), parts=parts, traces=traces)
            self.index.write(self._entry + key, pack(entry), stage)
            if search_parts is not None:
                self.summarise(self.quoted + key, search_terms(key, search_parts), stage, repair=False)
            self._make_neighbour(key, stage, parts, search_parts or ())
            known = self._readable(self.usage)
            if known is None:
                return None
            grown = known.grown(added)
            self.index.write(store_size.ROW, pack(grown), store_size.TAG)
            return grown

        self.prepare()
        if search_parts is None:
            try:
                search_parts = self.parts_of(parts)
            except StoreFault as fault:
                self._on_fault(fault.fault, fault.detail)  # a search reads the parts then, and finds the same fault
        added = self.objects.take_written_bytes()
        try:
            size = self.index.atomically(change)
        except BaseException:
            self.objects.count(added)  # they are there: the next publication tells
            raise
        self._published = (size,)

    def _make_neighbour(self, key: Digest, stage: str, described: ArtifactRef, parts: Sequence[Part]) -> None:
        """Put a key in front of the rows in which calls like it find it."""
        from cachec.store.nearest_keys import Recent, neighbourhood, prints_of

        mine = prints_of(parts)
        for alike in neighbourhood(stage, parts).rows():
            recent_rows = self._readable(partial(self.recent, stage, alike)) or Recent(stage=stage, alike=alike)
            newest = recent_rows.with_newest(key, described, mine)
            name, row = self._near + alike if alike else self._recent + stage, pack(newest)
            self.index.write(name, row, stage)
            self._recents.put(name, _KnownRecent(None, row, newest))

    def summarise(self, name: str, terms: SearchTerms, stage: str, *, repair: bool = True) -> None:
        """Write the rows of a summary. name: namespace and key, as in the name of the entry's row.

        repair: whether facts that are there are read, and written again where they are damaged. A search does without
        them, and ``gc`` repairs them, so that a publication need not read them.
        """
        facts, row = f"facts:{terms.summary.facts}", pack(terms.facts)
        try:
            is_there = self.index.read(facts) == row if repair else any(self.index.keys(prefix=facts))
        except StoreFault as fault:
            if fault.fault is not Fault.ROW_REFUSED:
                raise
            is_there = False  # overwritten: nothing of a foreign row is needed
        if not is_there:
            self.index.write(facts, row, stage)
        self.index.write(f"summary:{name}", pack(terms.summary), stage)

    def usage(self) -> Usage | None:
        """How large the store is; None where nobody has measured it yet."""
        row = self.index.read(store_size.ROW)
        return None if row is None else unpack(row, Usage, store_size.ROW)

    def keep_bound(self, bound: Callable[[Store, Usage | None], object], largest: int = 0) -> None:
        """Let ``bound`` be called by ``settle``, with this store and its size (None where that is not known).

        largest: bytes of one result, 0 for any number.
        """
        self._bound, self._largest = bound, largest

    def sink(self) -> BoundedSink:
        """Where the artifacts of one result go."""
        return BoundedSink(self.objects, self._largest)

    def settle(self) -> None:
        """To be called after publications, with no lock held: the store is brought back into its bounds, if need be.

        A fault of that is counted, not raised.
        """
        published, self._published = self._published, ()
        if not published or self._bound is None:
            return
        try:
            self._bound(self, published[0])
        except StoreFault as fault:
            self._on_fault(fault.fault, fault.detail)

    def invalidate(self, key: Digest) -> bool:
        """Forget an entry; whether there was one. Its artifacts stay until ``gc``."""

        def change() -> bool:
            forget(self.index, self.folder, {self.quoted + key: latest(self._readable(lambda: self.lookup(key)))})
            self.index.delete(self._summary + key)
            return self.index.delete(self._entry + key)

        return self.index.atomically(change)

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
                entry = self._decode(key, row)
            except StoreFault:
                entry = None  # it is put away as it is, whatever it holds
            stage = entry.stage if entry else ""
            put_away = QuarantinedRow(
                version=RECORD_VERSION, key=key, stage=stage, reason=reason, time=time.time(), row=row
            )
            self.index.write(self._quarantine + key, pack(put_away), stage)
            forget(self.index, self.folder, {self.quoted + key: latest(entry)})
            self.index.delete(self._summary + key)
            return self.index.delete(self._entry + key)

        return self.index.atomically(change)

    def forgotten(self, key: Digest) -> float:
        """The Unix time up to which runs of an entry are not to come back from elsewhere; 0 where all may."""
        return forgotten(self.index, self.quoted + key)

    def lock(self, key: Digest) -> KeyLock:
        """The lock of a key, not yet taken."""
        return self.locks.of(key)

    def release(self) -> None:
        """Give up the artifacts that were handed out: ``gc`` may remove them from now on (see leases.py)."""
        self.objects.release()

    def close(self) -> None:
        """Write what is still to be remembered, and let go of the files."""
        self.index.close()

    def _readable(self, read: Callable[[], T]) -> T | None:
        """What ``read`` gives; None for a damaged row, which is counted and overwritten. Any other fault is raised."""
        try:
            return read()
        except StoreFault as fault:
            if not fault.fault.is_of_a_row:
                raise
            self._on_fault(fault.fault, fault.detail)
            return None


def references(entry: Entry) -> Iterator[ArtifactRef]:
    """Every artifact that an entry refers to; one may come twice."""
    yield entry.parts
    for trace in entry.traces:
        yield from products(trace)
        yield from trace.explanations


def products(trace: Trace) -> Iterator[ArtifactRef]:
    """Every artifact that a run made, and the manifest that its files have."""
    if trace.manifest is not None:
        yield trace.manifest
    if trace.generators is not None:
        yield trace.generators
    yield from artifacts(trace.value)
