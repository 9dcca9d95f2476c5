"""Caches whose keys are made elsewhere (by JAX, torch, Triton), kept in the store: bytes under the key of another.

What such a cache does goes round the engine: there is no call to run, nothing to fingerprint and nothing read. A value
is an entry as a stage's result is, so everything that looks at entries sees it. Its one trace holds

    Record("", ("data", "seal"), (the bytes, as ``codecs.json_data`` has them, Inline("str", seal)))

where the seal is a digest over the key and the content. A row whose bytes are those of another key has another seal
unless somebody made a new one, so a mistake of whoever copies rows or edits them is a miss.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, NamedTuple, SupportsFloat

import msgspec

from cachec.base import call_hooks, fsio
from cachec.base.hashing import Hasher, digest_bytes
from cachec.context import CacheContext
from cachec.errors import CacheMissError, StoreFault, UsageError, clip
from cachec.model import (
    MISS_OF_FAULT,
    Digest,
    Fault,
    Inline,
    KeyDescription,
    Leaf,
    Mode,
    Node,
    Outcome,
    Part,
    PartKind,
    Reason,
    Record,
    RemoteFetch,
    Trace,
)
from cachec.store.artifacts import ArtifactSink

if TYPE_CHECKING:
    from cachec.remote.chain import Remotes

#: Bump it when the meaning of a foreign key changes: every older entry is then a miss.
_KEY_VERSION = "1"

#: Misses of this process whose ``put`` may still come; all are forgotten when there are more.
_MISSED_MAX = 1024

#: Characters of a key, or of a field of its detail, that are kept for a person and for ``--option``.
_SHOWN = 200

#: Modes that store.
_STORING = frozenset({Mode.ON, Mode.REFRESH, Mode.VERIFY})

#: Modes in which a miss asks the remotes: they publish here what is fetched.
_ASKING = frozenset({Mode.ON, Mode.VERIFY, Mode.REQUIRE})

#: Misses that every small compile of a new process is: told once something is stored.
_REPORTED_WHEN_STORED = frozenset({Reason.FIRST_RUN, Reason.ENTRY_GONE, Reason.REFRESH})

#: Faults of an entry, not of the store: it is taken away.
_OF_ENTRY = frozenset(MISS_OF_FAULT)


#: Bytes up to this many stay in the row.
_INLINE_MAX = 512


class _LookupResult(NamedTuple):
    """What was found: the bytes and their trace, or why there are none."""

    reason: Reason
    data: bytes = b""
    trace: Trace | None = None
    detail: str = ""
    fault: Fault | None = None


class _MissedKey(NamedTuple):
    """A key that this process missed."""

    time: float
    #: The outcome, where it counts only once the value is there.
    uncounted: Outcome | None = None


class Foreign:
    """What ``cache.foreign`` gives. Safe among threads, processes and across a fork."""

    def __init__(
        self,
        opened: CacheContext,
        name: str,
        *,
        version: str = "1",
        tags: tuple[str, ...] = (),
        same: Callable[[bytes, bytes], bool] = operator.eq,
        selective: bool = False,
        shared: Literal["off", "signed", "all"] = "off",
    ) -> None:
        """See ``Cache.foreign``. Raises UsageError for another ``shared``."""
        if shared not in {"off", "signed", "all"}:
            raise UsageError(f'shared={shared!r}: expected "off", "signed" or "all"')
        remotes = opened.remotes if shared != "off" else None
        self._remotes = remotes.only_signed() if remotes is not None and shared == "signed" else remotes
        self._machine = "" if shared == "off" else _machine()
        self.name = name
        self.version = version
        self._opened = opened
        self._tags = tags
        self._same = same
        self._selective = selective
        self._missed: dict[Digest, _MissedKey] = {}

    def get(self, key: str | bytes) -> bytes | None:
        """The bytes that were put under ``key``; None where there are none, or none that can be used.

        A fault of the store is a miss, counted with its reason; an entry that was found damaged is taken away. Raises
        CacheMissError for a miss in mode ``require``, UsageError for a key that is no str and no bytes. Where not all
        is put that is asked for (``selective``), a key without an entry is neither counted nor refused here.
        """
        started = time.perf_counter()
        digest = self._digest(key)
        mode = self._mode()
        if mode is Mode.OFF:
            self._count(Reason.MODE_OFF, digest, started)
            return None
        if self._opened.settings.store_folder is None:
            outcome = self._outcome(Reason.NO_STORE_FOLDER, digest, detail=self._opened.settings.no_store)
            if mode is Mode.REQUIRE and not self._selective:
                raise self._required_miss(outcome)
            self._emit(outcome)
            return None
        lookup, fetched = self._find(digest), None
        if lookup.reason is Reason.FIRST_RUN and self._remotes is not None and mode in _ASKING:
            lookup, fetched = self._fetch(digest, self._remotes)
        if lookup.trace is not None and mode not in {Mode.REFRESH, Mode.VERIFY}:
            self._count(Reason.HIT, digest, started, saved=lookup.trace.seconds, remote=fetched)
            return lookup.data
        reason, detail, fault = lookup.reason, lookup.detail, lookup.fault
        if lookup.trace is not None:
            reason = Reason.REFRESH
        elif reason is Reason.FIRST_RUN:
            reason, detail = self._explain_miss(digest)
        if fault is not None:
            self._opened.events.note_fault(fault, detail)
            if fault in _OF_ENTRY and mode in _STORING:
                self._take_away(digest)
        taken = time.perf_counter() - started
        outcome = self._outcome(reason, digest, detail=detail, seconds=taken, fault=fault, remote=fetched)
        is_open = self._selective and reason is Reason.FIRST_RUN
        if mode is Mode.REQUIRE and not is_open:
            raise self._required_miss(outcome)
        if len(self._missed) >= _MISSED_MAX:
            self._missed.clear()
        self._missed[digest] = _MissedKey(started, outcome if is_open else None)
        if not is_open:
            self._emit(outcome, is_reported=reason not in _REPORTED_WHEN_STORED)
        return None

    def put(
        self, key: str | bytes, data: bytes | bytearray | memoryview, *, seconds: float = 0.0, detail: str = ""
    ) -> None:
        """Store ``data`` under ``key``, in place of what is there. In modes that do not store, nothing happens.

        seconds: how long it took to make, which is what a hit saves, and what it is worth when the store is full; 0:
        since this process missed the key. detail: what the key was made of, for people: a line each, ``name: value``.
        ``cachec why`` compares them, ``--option`` selects by them; they are not in the key.

        A fault of the store is counted, and nothing is stored. Raises UsageError for anything of another type, and
        CacheMissError in mode ``require`` for a miss that ``get`` did not tell.
        """
        digest = self._digest(key)
        data = _flat(data)
        if not isinstance(seconds, SupportsFloat) or not isinstance(detail, str):
            found = f"seconds={seconds!r} and detail={detail!r}"
            raise UsageError(f"seconds expected a number and detail a text; found {found}")
        seconds = float(seconds)
        mode = self._mode()
        if self._opened.settings.store_folder is None:
            if mode is Mode.REQUIRE:
                why = self._opened.settings.no_store
                raise self._required_miss(self._outcome(Reason.NO_STORE_FOLDER, digest, detail=why))
            return
        missed = self._missed.pop(digest, None)
        uncounted = None if missed is None else missed.uncounted
        if mode not in _STORING:
            if uncounted is not None and mode is Mode.REQUIRE:
                raise self._required_miss(uncounted)
            if uncounted is not None and mode is not Mode.OFF:
                self._emit(uncounted, is_reported=False)
            return
        if not 0 < seconds < math.inf:
            seconds = time.perf_counter() - missed.time if missed is not None else 0.0
        if mode is Mode.VERIFY and (lookup := self._find(digest)).trace is not None:
            self._verify(digest, lookup, bytes(data), seconds)
            return
        parts = self._parts(key, detail)
        words = self._nearest(digest, parts)
        try:
            with fsio.faults(f"storing a value of {self.name}"), self._lock_entry(digest):
                trace = self._publish(digest, data, parts, seconds)
        except StoreFault as fault:
            self._opened.events.note_fault(fault.fault, fault.detail)
            if uncounted is not None:
                self._emit(msgspec.structs.replace(uncounted, seconds=seconds, fault=fault.fault), is_reported=False)
            return
        self._opened.store.settle()
        if self._remotes is not None:
            self._remotes.offer(digest, trace)
        reason = Reason.REFRESH if mode is Mode.REFRESH and uncounted is None else Reason.FIRST_RUN
        outcome = self._outcome(reason, digest, detail=words, seconds=seconds, stored=True)
        if uncounted is None:
            self._opened.events.tell(outcome)  # counted when it was missed
        else:
            self._emit(outcome)

    def bypass(self, reason: Reason, detail: str, *, is_reported: bool = True) -> None:
        """Count a value that is neither looked for nor stored.

        detail: why, for people. is_reported: whether the terminal shows it.

        Raises UsageError for a reason that is no bypass.
        """
        if not isinstance(reason, Reason) or reason.kind != "bypass":
            raise UsageError(f"reason expected a Reason of kind 'bypass'; found {reason!r}")
        if self._mode() is not Mode.OFF:
            self._emit(self._outcome(reason, "", detail=detail), is_reported=is_reported)

    def _required_miss(self, outcome: Outcome) -> CacheMissError:
        """What is raised for a miss in mode ``require``; it is counted."""
        words = f"{outcome.reason.value}: {outcome.detail}"
        self._emit(msgspec.structs.replace(outcome, reason=Reason.REQUIRED, detail=words))
        return CacheMissError(f"{self.name} would miss in mode require: {words}")

    # --- keys

    def _digest(self, key: str | bytes) -> Digest:
        hasher = Hasher("foreign")
        for label, text in (("format", _KEY_VERSION), ("name", self.name), ("version", self.version)):
            hasher.part(label, text.encode("utf-8", "surrogatepass"))
        if self._machine:
            hasher.part("machine", self._machine.encode())
        if isinstance(key, str):
            hasher.part("str", key.encode("utf-8", "surrogatepass"))
        elif isinstance(key, bytes):
            hasher.part("bytes", key)
        else:
            raise UsageError(f"key expected str or bytes; found {type(key).__qualname__}")
        return hasher.digest()

    def _parts(self, key: str | bytes, detail: str) -> tuple[Part, ...]:
        """What is said of a key. What it was made of comes first, because that is told first."""
        fields = [_part(*_field(line)) for line in detail.splitlines() if line.strip()]
        text = key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
        made = digest_bytes(f"{_KEY_VERSION} {self.version}".encode("utf-8", "surrogatepass"))
        stage = Part(PartKind.STAGE, self.name, made, clip(self.version), version=clip(self.version))
        return (stage, *fields, _part("key", text))

    def _explain_miss(self, digest: Digest) -> tuple[Reason, str]:
        """Why there is no entry, as far as a key tells that was made elsewhere."""
        try:
            recent = self._opened.store.recent(self.name)
            is_known = digest in recent.keys
            is_there = is_known and self._opened.store.lookup(digest) is not None  # stored since, as no lock was held
        except StoreFault as fault:
            return Reason.FIRST_RUN, f"no earlier entry can be read ({fault.detail})"
        if is_there:
            return Reason.FIRST_RUN, "another process has stored it meanwhile"
        if is_known:
            return Reason.ENTRY_GONE, "the entry was invalidated or evicted"
        return Reason.FIRST_RUN, "no entry of this key yet" if recent.keys else "no entry of this name yet"

    def _nearest(self, digest: Digest, parts: tuple[Part, ...]) -> str:
        """What makes another key of the nearest entry's, in words; empty where none can be read."""
        from cachec.key.key_diff import first_difference  # after a miss only

        with suppress(StoreFault):  # said to a person alone; what is wrong there is met, and counted, by who needs it
            for near in self._opened.store.recent(self.name).nearest(parts):
                if near.key != digest:
                    return first_difference(self._opened.store.parts(near), parts).detail
        return ""

    # --- the entry

    def _find(self, digest: Digest) -> _LookupResult:
        """A hit with its bytes, or why it is none. Every byte is hashed: an altered one is never handed out."""
        try:
            with fsio.faults("reading what is stored"):
                entry = self._opened.store.lookup(digest)
                if entry is None:
                    return _LookupResult(Reason.FIRST_RUN)
                if not entry.traces:
                    raise StoreFault(Fault.ROW_CORRUPT, f"the entry {digest} holds no trace")
                return _LookupResult(Reason.HIT, self._data(digest, entry.traces[0].value), entry.traces[0])
        except StoreFault as fault:
            reason = MISS_OF_FAULT.get(fault.fault, Reason.STORE_UNAVAILABLE)
            return _LookupResult(reason, detail=fault.detail, fault=fault.fault)

    def _data(self, digest: Digest, value: Node) -> bytes:
        match value:
            case Record("", ("data", "seal"), (Inline("bytes") as node, Inline("str", seal))):
                data = _inline(digest, node)
                content = digest_bytes(data)
            case Record("", ("data", "seal"), (Leaf("bytes", (ref,)), Inline("str", seal))):
                data, content = self._opened.store.objects.read(ref), ref.digest
            case _:
                raise StoreFault(Fault.ROW_CORRUPT, f"the entry {digest} is none of a foreign cache")
        if seal != _seal(digest, content):
            raise StoreFault(Fault.ROW_FOREIGN, f"the entry {digest} holds bytes that were put under another key")
        return data

    def _fetch(self, digest: Digest, remotes: Remotes) -> tuple[_LookupResult, RemoteFetch | None]:
        """What is found once the remotes were asked; what one of them has is in the store from now on."""
        fetched = None
        with self._lock_entry(digest):
            lookup = self._find(digest)
            if lookup.reason is Reason.FIRST_RUN:
                fetched = remotes.fetch(digest, lambda _place: None, self.name).fetched
                if fetched is not None and fetched.hit:
                    lookup = self._find(digest)
        return lookup, fetched

    def _publish(self, digest: Digest, data: bytes | memoryview, parts: tuple[Part, ...], seconds: float) -> Trace:
        size = memoryview(data).nbytes
        if 0 < self._opened.settings.max_size < size:
            raise StoreFault(
                Fault.STORE_FULL, f"{size} bytes of {self.name} are more than max_size={self._opened.settings.max_size}"
            )
        # Leased until the row is there, and no longer: bytes are handed out, so nobody needs the file.
        objects = self._opened.store.objects.leasing()
        try:
            stored = _store_bytes(data, objects)
            content = stored.artifacts[0].digest if isinstance(stored, Leaf) else digest_bytes(data)
            value = Record("", ("data", "seal"), (stored, Inline("str", _seal(digest, content))))
            described = objects.add_bytes(msgspec.json.encode(KeyDescription(parts)))
            self._opened.store.objects.count(objects.take_written_bytes())
            trace = Trace(reads=(), value=value, seconds=seconds, created=time.time())
            self._opened.store.publish(digest, self.name, self._tags, described, trace, search_parts=parts)
            return trace
        finally:
            objects.release()

    def _take_away(self, digest: Digest) -> None:
        """Put a damaged entry out of reach, unless another has replaced it meanwhile."""
        try:
            with self._lock_entry(digest):
                lookup = self._find(digest)
                if lookup.fault in _OF_ENTRY:
                    self._opened.store.quarantine(digest, lookup.detail)
        except StoreFault as fault:
            self._opened.events.note_fault(fault.fault, fault.detail)

    def _verify(self, digest: Digest, lookup: _LookupResult, data: bytes, seconds: float) -> None:
        """Hold what was made anew against what is stored, which stays unless it differs."""
        if self._same(data, lookup.data):
            self._emit(self._outcome(Reason.VERIFIED, digest, seconds=seconds))
            return
        words = f"{len(data)} bytes were made anew, and differ from the {len(lookup.data)} that are stored"
        try:
            self._opened.store.quarantine(digest, words)
        except StoreFault as fault:
            self._opened.events.note_fault(fault.fault, fault.detail)
        self._emit(self._outcome(Reason.VERIFY_DIFFERS, digest, detail=words, seconds=seconds))

    @contextmanager
    def _lock_entry(self, digest: Digest) -> Iterator[None]:
        """Keep others from writing the entry meanwhile. Who waits too long goes on without: rows change whole."""
        lock = self._opened.store.lock(digest)
        if not lock.acquire(self._opened.settings.lock_timeout):
            self._opened.events.note_fault(Fault.LOCK_TIMEOUT, f"process {lock.holder()} held {digest[:12]}")
        try:
            yield
        finally:
            lock.release()

    # --- what is said

    def _mode(self) -> Mode:
        return call_hooks.current().mode_in(self._opened.settings.store_folder) or self._opened.settings.mode

    def _count(
        self,
        reason: Reason,
        digest: Digest,
        started: float,
        *,
        detail: str = "",
        saved: float = 0.0,
        fault: Fault | None = None,
        remote: RemoteFetch | None = None,
    ) -> None:
        taken = time.perf_counter() - started
        outcome = self._outcome(reason, digest, detail=detail, seconds=taken, saved=saved, fault=fault, remote=remote)
        self._emit(outcome, is_reported=reason not in _REPORTED_WHEN_STORED)

    def _emit(self, outcome: Outcome, *, is_reported: bool = True) -> None:
        call_hooks.report_outcome(outcome, lambda: self._opened.events.emit(outcome, is_reported=is_reported))

    def _outcome(
        self,
        reason: Reason,
        digest: Digest,
        *,
        detail: str = "",
        seconds: float = 0.0,
        saved: float = 0.0,
        stored: bool = False,
        fault: Fault | None = None,
        remote: RemoteFetch | None = None,
    ) -> Outcome:
        return Outcome(
            reason=reason,
            stage=self.name,
            key=digest,
            detail=detail,
            seconds=seconds,
            saved=saved,
            stored=stored,
            fault=fault,
            remote=remote,
            time=time.time(),
        )

    def __repr__(self) -> str:
        return f"Foreign({self.name!r}, version={self.version!r}, dir={str(self._opened.settings.store_folder)!r})"


def _machine() -> Digest:
    """What another machine must have alike for what is compiled for this one."""
    from cachec.key.tools.platform import platform_part

    return platform_part().digest


def _seal(digest: Digest, content: Digest) -> Digest:
    hasher = Hasher("foreign-seal")
    hasher.part("key", digest.encode())
    hasher.part("content", content.encode())
    return hasher.digest()


def _store_bytes(data: bytes | memoryview, objects: ArtifactSink) -> Inline | Leaf:
    if memoryview(data).nbytes <= _INLINE_MAX:
        return Inline("bytes", data.hex())
    return Leaf("bytes", (objects.add_bytes(data),))


def _inline(digest: Digest, node: Inline) -> bytes:
    try:
        return bytes.fromhex(node.value)
    except ValueError as error:
        raise StoreFault(Fault.ROW_CORRUPT, f"the entry {digest} holds no bytes: {error}") from error


def _flat(data: bytes | bytearray | memoryview) -> bytes | memoryview:
    """The same bytes in one piece. Raises UsageError for what is no bytes."""
    if isinstance(data, bytes):
        return data
    if not isinstance(data, bytearray | memoryview):
        raise UsageError(f"data expected bytes; found {type(data).__qualname__}")
    view = memoryview(data)
    return view.cast("B") if view.c_contiguous and view.nbytes else bytes(view)


def _field(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    return (name.strip(), value.strip()) if colon and name.strip() else ("detail", line.strip())


def _part(name: str, text: str) -> Part:
    words = clip(text, _SHOWN)
    digest = digest_bytes(text.encode("utf-8", "surrogatepass"))
    return Part(PartKind.ARGUMENT, clip(name), digest, words, value=text if words == text else "")
