"""Entries in an engine that can neither list, lock nor merge: an immutable trie of what runs read.

The root of a key is a leaf where its run read nothing; else an inner node that names what to look at. Below it is, for
each set of digests that these were found to have, the next node. So a lookup fetches a row, looks at what it names, and
goes on to the row that follows from what it saw: one round trip without reads, two with, and one more wherever the
content of a read decided what was read next.

A node is written once. Who finds another's inner node on his way goes below it, which adds dependencies: fewer hits,
never a wrong one. Only a leaf whose blobs are gone is replaced, and a row that can't be used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import file_digest
from time import monotonic
from typing import NamedTuple

import msgspec

from cachec.errors import StoreFault
from cachec.model import ArtifactRef, Digest, Entry, Fault, Trace
from cachec.remote.engines.base import RemoteBlob, RemoteEngine
from cachec.remote.nodes import (
    INLINE_BYTES,
    INLINE_ONE,
    VERSION,
    Name,
    TrieNode,
    artifacts_of,
    child_name,
    decode_node,
    deflate,
    encode_node,
    inflate,
    root_name,
)
from cachec.remote.prefetch import prefetch_pieces
from cachec.remote.trust import Trust
from cachec.store.store import Store

MAX_DEPTH = 8

#: Waiting for all rows of a lookup takes no longer than for so many that come at the last moment.
WALK_ROWS = 1.5

#: Seconds to wait for the blobs of a result, beside those that they take at ``SLOWEST`` bytes a second; and not longer
#: than their run took, where that is more.
BLOB_SECONDS = 5.0
SLOWEST = 1 << 18

#: Seconds for one row, or one query, if no call waits for it.
UNHURRIED_SECONDS = 10.0

#: Blobs that are fetched at once.
_PARALLEL = 8

#: Bytes of a blob that is worth a thread.
_LARGE = 1 << 22

#: Returns the present digest of a name's file on this machine; None without one.
Present = Callable[[Name], Digest | None]


class LookupCost:
    """The cost of one lookup: seconds of waiting, received bytes, and the digests of its reads."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.nbytes = 0
        self.known_reads: dict[Name, Digest] = {}

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the seconds in here."""
        started = monotonic()
        try:
            yield
        finally:
            self.seconds += monotonic() - started


class Put(NamedTuple):
    """What became of an entry that was put."""

    #: Whether it was not there.
    is_new: bool
    #: Bytes that were sent.
    nbytes: int


class Trie:
    """The entries of one namespace in an engine. Raises StoreFault."""

    def __init__(self, engine: RemoteEngine, store: Store, namespace: str, seconds: float, trust: Trust) -> None:
        """seconds: to wait for one row."""
        self._trust = trust
        self._seconds = seconds
        self._engine = engine
        self._store = store
        self._namespace = namespace

    # --- getting

    def get(self, key: Digest, present: Present, waited: LookupCost, since: float = 0.0) -> Entry | None:
        """The entry of a key whose run holds here, with its artifacts in the store; no row of it is there yet.

        since: the Unix time up to which runs do not count.
        """
        leaf = self._leaf(key, present, waited)
        if leaf is None or leaf.entry is None:
            return None
        entry = leaf.entry
        if entry.traces[0].created <= since:
            return None
        for read in entry.traces[0].reads:
            if waited.known_reads.get((read.kind, read.where, read.name)) != read.digest:
                raise StoreFault(Fault.REMOTE_CORRUPT, f"row {leaf.name[:12]} has reads that do not lead to it")
        self._fetch(leaf, entry, waited)
        return entry

    def _leaf(self, key: Digest, present: Present, waited: LookupCost) -> TrieNode | None:
        name, started = root_name(self._namespace, key), waited.seconds
        for _ in range(MAX_DEPTH):
            remaining = WALK_ROWS * self._seconds - (waited.seconds - started)
            if remaining <= 0:
                raise StoreFault(Fault.REMOTE_TIMEOUT, "a lookup took too long")
            with waited.waiting():
                row = self._engine.get_row(name, monotonic() + min(self._seconds, remaining))
            if row is None:
                return None
            waited.nbytes += len(row)
            node = decode_node(row, name, key, self._trust)
            if node.entry is not None:
                return node
            digests = []
            for requested in node.requested_reads:
                digest = waited.known_reads.get(requested) or present(requested)
                if digest is None:
                    return None
                waited.known_reads[requested] = digest
                digests.append(digest)
            name = child_name(name, node.requested_reads, digests)
        return None

    def _fetch(self, leaf: TrieNode, entry: Entry, waited: LookupCost) -> None:
        refs = artifacts_of(entry)
        total = sum(ref.size for ref in refs.values())
        self._store.prepare()
        self._store.sink().expect(total)
        absent = []
        for ref in refs.values():
            if ref.digest in leaf.inline:
                if not self._store.objects.receive(ref, iter((inflate(leaf.inline[ref.digest], ref.size),))):
                    raise _other(ref)
            elif not self._store.objects.has(ref):
                absent.append(RemoteBlob(ref.digest, ref.size, leaf.sha256.get(ref.digest, "")))
        if not absent:
            return
        seconds = min(BLOB_SECONDS + total / SLOWEST, max(BLOB_SECONDS, entry.traces[0].seconds))
        with waited.waiting():
            self._receive(absent, monotonic() + seconds)
        waited.nbytes += sum(blob.size for blob in absent)

    def _receive(self, blobs: list[RemoteBlob], until: float) -> None:
        def receive(blob: RemoteBlob) -> None:
            pieces = self._engine.get_blob(blob, until)
            ref = ArtifactRef(blob.digest, blob.size)
            if pieces is None:
                raise StoreFault(Fault.REMOTE_CORRUPT, f"artifact {blob.digest[:12]} of a row is gone")
            if blob.size > _LARGE:
                pieces = prefetch_pieces(pieces)
            if not self._store.objects.receive(ref, pieces):
                raise _other(ref)

        if len(blobs) == 1:
            receive(blobs[0])
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(_PARALLEL, len(blobs))) as pool:
            for done in [pool.submit(receive, blob) for blob in blobs]:
                done.result()

    # --- putting

    def put(self, entry: Entry, trace: Trace, known_reads: dict[Name, Digest], *, anew: bool = False) -> Put:
        """Put one run of an entry. known_reads: what its lookup saw, for the nodes of others that are on its way. anew:
        also what seems to be there, as it was found to be damaged.

        What explains a miss and goes into reproducers stays here: ``Trace.explanations`` is left out.
        """
        trace = msgspec.structs.replace(trace, explanations=())
        entry = msgspec.structs.replace(entry, traces=(trace,))
        reads = {(read.kind, read.where, read.name): read.digest for read in trace.reads}
        known, remaining = {**known_reads, **reads}, set(reads)
        name, sent = root_name(self._namespace, entry.key), 0
        for _ in range(MAX_DEPTH):
            node, is_there = self._present_node(name, entry.key)
            if node is not None and node.entry is not None:
                blobs = _blobs(node)
                if not anew and all(self._engine.has_blob(blob, _soon()) for blob in blobs):
                    return Put(False, sent)
                node = None  # a row whose blobs are gone, or damaged
            if node is None and not remaining:
                leaf = self._new_leaf(name, entry)
                sent += self._send(_blobs(leaf), anew=anew)
                row = encode_node(leaf, self._trust)
                self._engine.put_row(name, row, _blobs(leaf), _soon(), replace=is_there)
                return Put(True, sent + len(row))
            if node is None:
                node = TrieNode(version=VERSION, name=name, requested_reads=tuple(sorted(remaining)))
                if not self._engine.put_row(name, encode_node(node, self._trust), (), _soon(), replace=is_there):
                    continue  # another process was first: go below its node
            unknown = [requested for requested in node.requested_reads if requested not in known]
            if unknown:
                raise StoreFault(Fault.REMOTE_SKIPPED, f"another run looked at {unknown[0][0]} {unknown[0][1]} first")
            remaining -= set(node.requested_reads)
            name = child_name(name, node.requested_reads, [known[requested] for requested in node.requested_reads])
        raise StoreFault(Fault.REMOTE_SKIPPED, "too many runs that looked at different things")

    # --- forgetting

    def forget(self, key: Digest, trace: Trace) -> bool:
        """Remove the leaf that a run of a key leads to; whether there was one.

        The inner nodes stay: they say nothing of a result, and others' runs are below them.
        """
        known = {(read.kind, read.where, read.name): read.digest for read in trace.reads}
        name = root_name(self._namespace, key)
        for _ in range(MAX_DEPTH):
            node, is_there = self._present_node(name, key)
            if node is None and not is_there:
                return False
            if node is None or node.entry is not None:  # a row that can't be used is one to forget, too
                self._engine.delete_row(name, _soon())
                return True
            unknown = [requested for requested in node.requested_reads if requested not in known]
            if unknown:
                raise StoreFault(Fault.REMOTE_SKIPPED, f"another run looked at {unknown[0][0]} {unknown[0][1]} first")
            name = child_name(name, node.requested_reads, [known[requested] for requested in node.requested_reads])
        return False

    def _present_node(self, name: Digest, key: Digest) -> tuple[TrieNode | None, bool]:
        """The usable node of that name, and whether there is a row at all."""
        try:
            row = self._engine.get_row(name, _soon())
            return (None, False) if row is None else (decode_node(row, name, key, self._trust), True)
        except StoreFault as fault:
            if fault.fault not in {Fault.REMOTE_CORRUPT, Fault.REMOTE_UNTRUSTED}:
                raise
            return None, True

    def _new_leaf(self, name: Digest, entry: Entry) -> TrieNode:
        objects, inline, sums, available = self._store.objects, {}, {}, INLINE_BYTES
        for ref in artifacts_of(entry).values():
            with objects.path(ref).open("rb") as file:
                sums[ref.digest] = file_digest(file, "sha256").hexdigest()
            if ref.size <= INLINE_ONE and len(data := deflate(objects.read(ref))) <= available:
                inline[ref.digest] = data
                available -= len(data)
        return TrieNode(version=VERSION, name=name, entry=entry, sha256=sums, inline=inline)

    def _send(self, blobs: list[RemoteBlob], *, anew: bool) -> int:
        sent = 0
        for blob in blobs:
            if anew or not self._engine.has_blob(blob, _soon()):
                path = self._store.objects.path(ArtifactRef(blob.digest, blob.size))
                self._engine.put_blob(blob, str(path), monotonic() + UNHURRIED_SECONDS + blob.size / SLOWEST)
                sent += blob.size
        return sent


def _blobs(leaf: TrieNode) -> list[RemoteBlob]:
    """Return the blobs of a leaf."""
    assert leaf.entry is not None
    refs = artifacts_of(leaf.entry).values()
    return [
        RemoteBlob(ref.digest, ref.size, leaf.sha256.get(ref.digest, ""))
        for ref in refs
        if ref.digest not in leaf.inline
    ]


def _other(ref: ArtifactRef) -> StoreFault:
    return StoreFault(Fault.REMOTE_CORRUPT, f"artifact {ref.digest[:12]} has other content than its name says")


def _soon() -> float:
    return monotonic() + UNHURRIED_SECONDS
