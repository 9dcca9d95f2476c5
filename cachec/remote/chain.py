"""The remotes of one opened cache: asked in their order, and offered what is new."""

from __future__ import annotations

import copy
import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from time import monotonic
from typing import NamedTuple

from cachec.base import fsio
from cachec.base.display_text import to_type
from cachec.base.hashing import digest_bytes
from cachec.errors import StoreFault
from cachec.model import Digest, Entry, Fault, Read, RemoteFetch, Trace
from cachec.remote.circuit_breaker import Breaker
from cachec.remote.engines import engine_of
from cachec.remote.engines.base import PlacedEngine, RemoteEngine
from cachec.remote.nodes import Name
from cachec.remote.schemes import import_clients
from cachec.remote.spool import Offer, Spool
from cachec.remote.trie import LookupCost, Present, Put, Trie
from cachec.remote.urls import Address, parse
from cachec.store.store import Store

#: Folders with content from a system's packages: a path there is assumed to be the same on another machine.
_SYSTEM = (
    *("/bin/", "/boot/", "/dev/", "/etc/", "/lib/", "/lib32/", "/lib64/", "/libx32/", "/nix/", "/opt/", "/proc/"),
    *("/run/", "/sbin/", "/snap/", "/sys/", "/usr/"),
)

#: Kinds of reads with a path as ``where``, of stages and of commands.
_PATHS = frozenset(
    {"file", "absent", "there", "listing", "links", "access", "status", "tool", "code", "cwd"}
    | {
        "content",
        "attributes",
        "source",
        "current",
    }  # a look-up, or names, are the same on most machines: of a folder, or of nothing
)

#: What says nothing against a remote.
_HARMLESS = frozenset({Fault.REMOTE_SKIPPED})


#: What an entry, or an artifact of it, is not there by.
_GONE = frozenset({Fault.STORE_MISSING, Fault.ARTIFACT_MISSING, Fault.ARTIFACT_CORRUPT})


class LookupReport(NamedTuple):
    """What came of a lookup, for ``offer``."""

    fetched: RemoteFetch | None
    #: The reads of the lookup.
    known_reads: dict[Name, Digest]
    #: Remotes that gave no answer, by name.
    damaged: frozenset[str] = frozenset()


class OfferResult(NamedTuple):
    """What came of an offer."""

    offer: Offer
    #: Where it was taken.
    put: Put | None = None
    #: Whether the entry is no more.
    gone: bool = False
    #: Why it still waits, or was dropped.
    fault: StoreFault | None = None


class Pending(NamedTuple):
    """How many offers wait."""

    #: For remotes that are written, by name.
    ours: Counter[str]
    #: For those that are only read, unknown: for those that are not configured, by URL (or by name, where no URL was
    #: kept).
    read_only: Counter[str]
    unknown: Counter[str]

    def list_blocked(self) -> list[str]:
        """What no push sends as things are, in words: a line for each remote."""
        whys = (
            (self.read_only, "which is only read (mode=read)"),
            (self.unknown, "which is not configured (any more)"),
        )
        return [
            f"{count:,} {'waits' if count == 1 else 'wait'} for {shown}, {why}; "
            + to_type(f"push --drop {shlex.quote(shown)}")
            for counts, why in whys
            for shown, count in counts.items()
        ]


class ProbeReply(NamedTuple):
    """What a remote says to a question."""

    #: ``ok`` or a fault.
    state: str
    #: Until then; None for a fault.
    seconds: float | None
    detail: str = ""


class Remote:
    """One remote."""

    def __init__(self, address: Address, store: Store) -> None:
        self.address = address
        self.engine: RemoteEngine = engine_of(address)
        self.trie = Trie(self.engine, store, address.namespace, address.timeout, address.trust)
        self.breaker = Breaker(store.folder / "remote", address.name, address.timeout)

    def probe(self) -> ProbeReply:
        """What it says to a question that has no answer; and whether a folder that is written can be."""
        import_clients([self.address.scheme])
        started = monotonic()
        until = started + self.address.timeout
        try:
            self.engine.get_row(digest_bytes(os.urandom(32)), until)
            if isinstance(self.engine, PlacedEngine) and self.address.is_written:
                self.engine.expect_writable(until)
        except StoreFault as fault:
            return ProbeReply(fault.fault.value, None, fault.detail)
        return ProbeReply("ok", monotonic() - started)


class Remotes:
    """All remotes of one store. No method raises a remote's error: it is passed to ``on_fault``, and counted."""

    def __init__(
        self,
        urls: Iterable[str],
        store: Store,
        on_fault: Callable[[Fault, str], None],
        environ: Mapping[str, str] | None = None,
        on_offer: Callable[[Remotes], object] | None = None,
    ) -> None:
        """on_offer: called once something is to be sent. Raises ConfigError for a URL that is none."""
        self.urls = tuple(urls)
        self._on_offer = on_offer
        environ = os.environ if environ is None else environ
        self.store = store
        self._on_fault = on_fault
        self.spool = Spool(store.folder)
        self.all = [Remote(parse(url, store.namespace, environ), store) for url in self.urls]

    def only_signed(self) -> Remotes:
        """Return the remotes that accept only signed rows."""
        chosen = copy.copy(self)
        chosen.all = [remote for remote in self.all if remote.address.trust.is_limited]
        return chosen

    # --- getting

    def fetch(self, key: Digest, present: Present, stage: str) -> LookupReport:
        """Publish the entry of a key here whose run holds, from the first remote that has it. stage: for messages.

        To be called under the lock of the key. An earlier remote that had none is offered it, if those are believed
        there who are believed here.
        """
        waited = LookupCost()
        without: list[Remote] = []
        damaged: set[str] = set()
        is_asked = is_hit = False
        for remote in self.all:
            if not remote.address.is_read or remote.breaker.is_off():
                continue
            is_asked = True
            try:
                entry = self._fetch_from(remote, key, present, waited)
            except StoreFault as fault:
                self._on_fault(fault.fault, _describe_fault(fault, remote, stage))
                if fault.fault is Fault.REMOTE_CORRUPT:
                    without.append(remote)
                    damaged.add(remote.address.name)
                continue
            if entry is None:
                without.append(remote)
                continue
            is_hit = self._is_published(entry)
            self._spool_for(self._trusting(without, remote), key, entry.traces[0], waited.known_reads, damaged)
            break
        if not is_asked:
            return LookupReport(None, {})
        fetched = RemoteFetch(seconds=waited.seconds, hit=is_hit, nbytes=waited.nbytes)
        return LookupReport(fetched, waited.known_reads, frozenset(damaged))

    def _fetch_from(self, remote: Remote, key: Digest, present: Present, waited: LookupCost) -> Entry | None:
        before = waited.seconds
        import_clients([remote.address.scheme])
        try:
            entry = remote.trie.get(key, present, waited, self.store.forgotten(key))
        except StoreFault as fault:
            if not fault.fault.is_remote:
                raise  # of this store
            if fault.fault not in _HARMLESS:
                self._count_failure(remote, waited.seconds - before)
            raise
        except Exception as error:
            # A row may request any read, and a dozen kinds of reads were not made for hostile input.
            self._count_failure(remote, waited.seconds - before)
            detail = f"{type(error).__name__} at what it says to look at: {error}"
            raise StoreFault(Fault.REMOTE_CORRUPT, detail) from error
        saved = 0.0 if entry is None else entry.traces[0].seconds
        self._report_breaker(remote, remote.breaker.record_answer(waited.seconds - before - saved))
        return entry

    def _count_failure(self, remote: Remote, seconds: float) -> None:
        self._report_breaker(remote, remote.breaker.record_failure(seconds))

    def _report_breaker(self, remote: Remote, is_off: bool) -> None:
        if is_off:
            words = f"{remote.address.shown} cost seconds and gave nothing; it is left alone for a minute"
            self._on_fault(Fault.REMOTE_OFF, words)

    def _is_published(self, entry: Entry) -> bool:
        try:
            with fsio.faults("publishing what a remote had"):
                fsio.make_dir(self.store.folder / "remote")  # from now on it remembers what it forgot
                self.store.publish(entry.key, entry.stage, entry.tags, entry.parts, entry.traces[0])
        except StoreFault as fault:
            self._on_fault(fault.fault, fault.detail)
            return False
        return True

    def _trusting(self, remotes: Iterable[Remote], source: Remote) -> list[Remote]:
        """Those that are written, and may have what another one had: a signature gives our word for it."""
        written = [remote for remote in remotes if remote.address.is_written]
        trusting = [remote for remote in written if remote.address.trust.may_pass_on(source.address.trust)]
        for remote in written:
            if remote not in trusting:
                words = f"what {source.address.shown} had is not signed for {remote.address.shown}, which trusts others"
                self._on_fault(Fault.REMOTE_SKIPPED, words)
        return trusting

    # --- putting

    def offer(self, key: Digest, trace: Trace, asked: LookupReport | None = None) -> None:
        """Have a run that was just published sent to the remotes that are written. Takes no time of theirs.

        asked: what came of its lookup, if there was one.
        """
        written = [remote for remote in self.all if remote.address.is_written]
        if not written:
            return
        place = local_path(trace.reads)
        if place:
            self._on_fault(Fault.REMOTE_SKIPPED, f"the run looked at {place}, a path of this machine alone")
        else:
            asked = asked or LookupReport(None, {})
            self._spool_for(written, key, trace, asked.known_reads, asked.damaged)

    def _spool_for(
        self,
        remotes: Iterable[Remote],
        key: Digest,
        trace: Trace,
        known_reads: Mapping[Name, Digest],
        damaged: Collection[str],
    ) -> None:
        try:
            is_new = self.queue(remotes, key, trace, known_reads, damaged) > 0
            with fsio.faults("beginning to send to remotes"):
                if is_new and self._on_offer is not None:
                    self._on_offer(self)
        except StoreFault as fault:
            self._on_fault(fault.fault, fault.detail)

    def queue(
        self,
        remotes: Iterable[Remote],
        key: Digest,
        trace: Trace,
        known_reads: Mapping[Name, Digest] | None = None,
        damaged: Collection[str] = (),
    ) -> int:
        """Have a run wait for those of these remotes that are written; for how many. Raises StoreFault.

        known_reads: what its lookup looked at; damaged: remotes, by name, where what is there can't be used.
        """
        count = 0
        with fsio.faults("keeping what is to be sent to a remote"):
            for remote in remotes:
                if remote.address.is_written:
                    self.spool.add(
                        Offer(
                            remote=remote.address.name,
                            namespace=self.store.namespace,
                            key=key,
                            created=trace.created,
                            known_reads=tuple((known_reads or {}).items()),
                            anew=remote.address.name in damaged,
                            shown=remote.address.shown,
                        )
                    )
                    count += 1
        return count

    def drain(self, *, insist: bool = False) -> Iterator[OfferResult]:
        """Send what waits for these remotes, one by one. Raises StoreFault where the spool can't be read.

        insist: begin also with remotes that are left alone for now.
        """
        failed: set[Remote] = set()
        places = {remote.address.name: remote for remote in self.all if remote.address.is_written}
        with fsio.faults("reading what is to be sent to remotes"):
            for offer in self.spool.offers():
                remote = places.get(offer.remote)
                if remote is None or offer.namespace != self.store.namespace:
                    continue
                if remote.breaker.is_off() and (remote in failed or not insist):
                    continue
                sent = self._send(remote, offer)
                if sent.fault is not None and sent.fault.fault not in _HARMLESS:
                    failed.add(remote)
                if sent.fault is None or sent.fault.fault is Fault.REMOTE_SKIPPED:
                    self.spool.remove(offer)
                yield sent

    def _send(self, remote: Remote, offer: Offer) -> OfferResult:
        import_clients([remote.address.scheme])
        started = monotonic()
        entry = None
        try:
            entry = self.store.lookup(offer.key)
            traces = [trace for trace in (entry.traces if entry else ()) if trace.created == offer.created]
            if entry is None or not traces:
                return OfferResult(offer, gone=True)
            with fsio.faults("reading what is to be sent"):
                put = remote.trie.put(entry, traces[0], dict(offer.known_reads), anew=offer.anew)
        except StoreFault as fault:
            self._on_fault(fault.fault, _describe_fault(fault, remote, "" if entry is None else entry.stage))
            if fault.fault.is_of_a_row or fault.fault in _GONE:
                return OfferResult(offer, gone=True)
            if fault.fault.is_remote and fault.fault not in _HARMLESS:
                self._count_failure(remote, monotonic() - started)
                self.spool.record_refusal(remote.address.name, f"{fault.fault.value}: {fault.detail}")
            return OfferResult(offer, fault=fault)
        self.spool.record_success(remote.address.name)
        if not remote.address.is_read:
            remote.breaker.record_answer(0.0)  # no call waits for it, so any answer is enough
        return OfferResult(offer, put=put)

    # --- forgetting

    def forget(self, entry: Entry) -> tuple[int, Counter[str]]:
        """Have the remotes that are written forget the runs of an entry: how many were removed, and how many may still
        be where, by the URL as it is shown: at remotes that are only read, and for a fault that was told."""
        removed, unsent = 0, Counter[str]()
        for remote in self.all:
            if not remote.address.is_written:
                continue
            for trace in entry.traces:
                try:
                    removed += remote.trie.forget(entry.key, trace)
                except StoreFault as fault:
                    self._on_fault(fault.fault, _describe_fault(fault, remote, entry.stage))
                    unsent[remote.address.shown] += 1
        unsent.update(dict.fromkeys(self.read_only(), len(entry.traces)))
        return removed, unsent

    def read_only(self) -> list[str]:
        """The remotes that are read, and not written under another URL either, as they are shown."""
        written = {remote.address.name for remote in self.all if remote.address.is_written}
        return [remote.address.shown for remote in self.all if remote.address.name not in written]

    def pending(self) -> Pending:
        """What waits to be sent. Raises StoreFault where the spool can't be read."""
        with fsio.faults("reading what is to be sent to remotes"):
            offers = [offer for offer in self.spool.offers(tidy=False) if offer.namespace == self.store.namespace]
        known = {remote.address.name: remote.address for remote in self.all}
        ours, read_only, unknown = Counter[str](), Counter[str](), Counter[str]()
        for offer in offers:
            address = known.get(offer.remote)
            if address is None:
                unknown[offer.shown or offer.remote] += 1
            elif address.is_written:
                ours[offer.remote] += 1
            else:
                read_only[address.shown] += 1
        return Pending(ours, read_only, unknown)

    def close(self) -> None:
        """Let go of connections."""
        for remote in self.all:
            remote.engine.close()


def _describe_fault(fault: StoreFault, remote: Remote, stage: str) -> str:
    """Describe a fault for a message, with the remote and the stage."""
    if not fault.fault.is_remote:
        return fault.detail
    return f"{remote.address.shown}: {fault.detail}" + (f" (stage {stage})" if stage else "")


def local_path(reads: Iterable[Read]) -> str:
    """Return the first path of reads that may differ on another machine; empty for none.

    A path from an anchor, or from the current folder, means the same there, and one of the system's as well.
    """
    for read in reads:
        paths = read.name.split("\0") if read.kind == "same" else [read.where] if read.kind in _PATHS else []
        for path in paths:
            if path.startswith("/") and not f"{path}/".startswith(_SYSTEM):
                return path
    return ""
