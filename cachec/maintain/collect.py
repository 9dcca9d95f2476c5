"""``gc``: evict what is worth least until the store is within its bound, and sweep what nothing needs.

**Never taken:** an entry that is pinned, or of which a living process was handed a result (leases.py); an artifact that
such a process was handed, or that an entry or owned weights need; what is younger than the grace period and not yet
referred to. Revisions of weights that no name stands for go first, and then what they had named without a grace period.

**Killed at any moment.** Rows go before their artifacts, in transactions of ``BATCH`` entries. The transaction that
removes rows also writes ``condemned:<hex>``: which artifacts nothing needs from then on. The next ``gc`` removes
these without a grace period, so it comes to the same end as one that was not killed. The order of eviction depends on
nothing that an eviction changes.

**Versions of the records:** entries of another version are never evicted: what they say is not known, so neither is
whether they are pinned or in use. What only they need counts for no limit but that of their own cachec. A version that
nobody has used for ``versions.OLD_SECONDS`` goes whole.

**Two at once:** the second one finds the lock ``locks/gc/gc`` taken and does nothing.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from cachec.base import fsio
from cachec.base.fsio import Identity
from cachec.base.hashing import row_name
from cachec.base.workers import in_threads
from cachec.errors import StoreFault
from cachec.maintain.catalogue import Item
from cachec.maintain.mark import Candidate, Survey, survey
from cachec.maintain.pins import Pins
from cachec.maintain.plans import BATCH, remove_rows
from cachec.maintain.sweep import GRACE_SECONDS, Sweep
from cachec.model import RECORD_VERSION, Digest, Fault
from cachec.store import derived_cache, nearest_keys, store_size, tombstones
from cachec.store.derived_cache import FORGOTTEN_SECONDS
from cachec.store.leases import LeasedArtifacts, collecting
from cachec.store.row_codec import pack
from cachec.store.store import Store
from cachec.store.store_size import Usage, disk_bytes
from cachec.store.versions import old_versions
from cachec.weights.library.stored_weights import WeightStore

T = TypeVar("T")

_TAG = "gc"

#: Artifacts that are removed while their folder is locked: who is handed one of that folder for the first time waits.
_LOCKED_MAX = 64


class CondemnedRow(msgspec.Struct, frozen=True, kw_only=True):
    """The row ``condemned:<hex>``: artifacts that nothing needed when it was written."""

    version: int
    artifacts: tuple[Digest, ...]


class CollectResult(msgspec.Struct):
    """What ``gc`` did, or with ``dry_run`` would do. Bytes are bytes on disk.

    before, after: size of the store. limit: what it was to come down to, None for no limit. entries: evicted;
    seconds: of compilation that they had saved a hit each. artifacts: removed files of artifacts; freed: their bytes.
    kept_pinned, kept_in_use: entries that would have gone. weights_in_use: revisions without a name that processes
    hold. old_versions: removed entries of record versions that nobody uses any more, by version. swept: other things
    removed, by kind. postponed_by: the process that is cleaning already (nothing was done then), 0 where none is.
    """

    before: int = 0
    after: int = 0
    limit: int | None = None
    entries: int = 0
    seconds: float = 0.0
    artifacts: int = 0
    freed: int = 0
    kept_pinned: int = 0
    kept_in_use: int = 0
    weights_in_use: tuple[Digest, ...] = ()
    old_versions: dict[int, int] = {}
    swept: Counter[str] = msgspec.field(default_factory=Counter)
    postponed_by: int = 0

    @property
    def is_within(self) -> bool:
        """Whether the store is no larger than its limit now."""
        return self.limit is None or self.after <= self.limit


class _Eviction(msgspec.Struct):
    evicted: list[Candidate]
    orphans: set[Digest]
    after: int


class Collector:
    """One run of ``gc`` over a store."""

    def __init__(
        self, store: Store, on_fault: Callable[[Fault, str], None], clock: Callable[[], float], *, dry_run: bool
    ) -> None:
        self._store = store
        self._on_fault = on_fault
        self._now = clock()
        self._dry_run = dry_run
        self._pins = Pins(store.index, store.quoted, clock)
        self._weights = WeightStore(store)
        self._damaged_records = 0
        self._skipped = False

    def run(self, limit: int | None, older_than: float | None) -> CollectResult:
        """Come down to ``limit`` bytes; evict what was not used for ``older_than`` seconds. Raises StoreFault."""
        done = CollectResult(limit=limit)
        with fsio.faults(f"gc of {self._store.folder}"):
            if not self._store.folder.is_dir():
                return done
            lock = self._store.locks.of("gc")
            if not lock.try_acquire():
                done.postponed_by = lock.holder() or -1
                return done
            try:
                with collecting(self._store.leases.folder) as held:
                    self._run(held, limit, older_than, done)
            finally:
                lock.release()
        return done

    def _run(self, held: LeasedArtifacts, limit: int | None, older_than: float | None, done: CollectResult) -> None:
        held.drop_dead(remove=not self._dry_run)
        held.refresh()
        started = self._usage()
        sweep = Sweep(self._store, held, self._now, self._on_fault, dry_run=self._dry_run)
        weights = sweep.revisions(self._weights)
        done.weights_in_use = weights.in_use
        owned = self._weights.list_needed(self._note_damaged)
        old = old_versions(self._store.index, os.fspath(self._store.folder), RECORD_VERSION, self._now)
        snapshot = survey(self._store, self._pins.read(), self._on_fault, self._now, owned, old)
        done.old_versions = snapshot.old_versions
        snapshot.condemned["weights"] = weights.loose
        plan = self._plan(snapshot, held, limit, older_than, done)
        done.before = snapshot.nbytes
        sweep.removed["damaged rows"] += len(snapshot.broken) + len(snapshot.put_away)
        names = {each.name for each in snapshot.entries}
        if self._dry_run:
            names -= {each.name for each in plan.evicted}
            done.entries = len(plan.evicted)
            done.seconds = sum(each.seconds for each in plan.evicted)
            done.freed, done.after = snapshot.nbytes - plan.after, plan.after
            done.artifacts = len(plan.orphans)
        else:
            self._tidy_rows(snapshot)
            doomed, gone = self._evict(snapshot, plan.evicted, held, done)
            names -= gone
            self._remove(doomed | plan.orphans, held, done)
            done.after = snapshot.nbytes - done.freed
            self._finish(snapshot, names, started, done)
        stored = {self._store.index.row_name(f"entry:{name}") for name in names}
        trees = {name for name, count in snapshot.trees.items() if count > 0}
        sweep.run(stored | snapshot.others, trees, snapshot.trees.keys() - trees if snapshot.others else None)
        done.swept = +sweep.removed

    def _note_damaged(self, detail: str) -> None:
        self._damaged_records += 1
        self._on_fault(Fault.IO_ERROR, detail)

    # --- the plan

    def _plan(
        self, snapshot: Survey, held: LeasedArtifacts, limit: int | None, older_than: float | None, done: CollectResult
    ) -> _Eviction:
        """What is to go. Leaves ``snapshot`` as it is."""
        condemned = frozenset[Digest]().union(*snapshot.condemned.values())
        orphans = {
            digest
            for digest, (_, mtime) in snapshot.objects.items()
            if not self._damaged_records  # what these need is not known
            and not snapshot.counts[digest]
            and digest not in snapshot.others_need
            and digest not in held
            and (digest in condemned or self._now - mtime > GRACE_SECONDS)
        }
        after = snapshot.nbytes - sum(snapshot.objects[digest][0] for digest in orphans)
        counts = Counter(snapshot.counts)
        evicted: list[Candidate] = []
        old = None if older_than is None else self._now - older_than
        for entry in sorted(snapshot.entries, key=lambda each: each.order):
            if not (old is not None and entry.last < old) and (limit is None or after <= limit):
                continue
            if snapshot.pinned.holds(entry.name, entry.tags):
                done.kept_pinned += 1
                continue
            if entry.in_use(held):
                done.kept_in_use += 1
                continue
            evicted.append(entry)
            freed = _release_needs(counts, entry.needs)
            gone = {digest for digest in freed if digest in snapshot.objects and digest not in held}
            orphans |= gone - snapshot.others_need if self._dry_run else set()
            after -= sum(snapshot.objects[digest][0] for digest in gone)
        return _Eviction(evicted, orphans, after)

    # --- the changes

    def _tidy_rows(self, snapshot: Survey) -> None:
        """Remove rows that can never hit, and write the summaries that are missing."""
        for version in snapshot.old_versions:
            self._store.index.clear(version)
        for batch in _batches(snapshot.broken):
            remove_rows(self._store, batch)
        for names in _batches(snapshot.put_away):
            self._store.index.delete_many(names)
        for items in _batches(snapshot.unsummarised):

            def write(items: Sequence[Item] = items) -> None:
                for item in items:
                    if item.terms is not None:
                        self._store.summarise(item.name, item.terms, item.entry.stage)

            self._store.index.atomically(write)

    def _evict(
        self, snapshot: Survey, evicted: list[Candidate], held: LeasedArtifacts, done: CollectResult
    ) -> tuple[set[Digest], set[str]]:
        """Remove the rows of these entries; which artifacts are needed by nothing from then on, and which rows went."""
        doomed = frozenset[Digest]().union(*snapshot.condemned.values())
        doomed = frozenset(digest for digest in doomed if not snapshot.counts[digest]) - snapshot.others_need
        levels = snapshot.levels
        names: set[str] = set()
        for batch in _batches(evicted):
            held.refresh()
            pinned = self._pins.read()
            going = {
                each.name: each for each in batch if not pinned.holds(each.name, each.tags) and not each.in_use(held)
            }
            levels = levels.raised(self._now, max((each.worth for each in going.values()), default=0.0))
            row = pack(levels)
            freed: set[Digest] = set()

            def condemn(
                gone: frozenset[str], going: dict[str, Candidate] = going, row: bytes = row, freed: set[Digest] = freed
            ) -> None:
                counts = Counter({digest: snapshot.counts[digest] for name in gone for digest in going[name].needs})
                freed.clear()
                freed.update(digest for name in gone for digest in _release_needs(counts, going[name].needs))
                freed.difference_update(snapshot.others_need)
                condemned = CondemnedRow(version=RECORD_VERSION, artifacts=tuple(sorted(freed)))
                self._store.index.write("gc:", row, _TAG)
                name = f"condemned:{os.urandom(8).hex()}"
                self._store.index.write(name, pack(condemned), _TAG)

            rows = [(each.name, each.state) for each in going.values()]
            gone = remove_rows(self._store, rows, condemn)
            for name in gone:
                _release_needs(snapshot.counts, going[name].needs)
                snapshot.trees.subtract(going[name].trees)
                done.entries += 1
                done.seconds += going[name].seconds
            doomed |= freed
            names |= gone
        return set(doomed), names

    def _remove(self, doomed: Iterable[Digest], held: LeasedArtifacts, done: CollectResult) -> None:
        """Remove artifacts that nobody holds, then what is remembered of their files."""
        shards: dict[str, list[Digest]] = defaultdict(list)
        for digest in sorted(doomed):
            shards[digest[:2]].append(digest)
        outcomes: list[list[tuple[Digest, os.stat_result]] | StoreFault] = []

        def remove(digests: Sequence[Digest]) -> None:
            try:
                outcomes.append(self._store.objects.remove_unleased(digests, held))
            except StoreFault as fault:  # a folder that somebody keeps locked, say; the next gc has another try
                outcomes.append(fault)

        turns = [(turn, part) for all_ in shards.values() for turn, part in enumerate(_batches(all_, _LOCKED_MAX))]
        turns.sort(key=lambda pair: pair[0])  # so that two threads do not want one folder
        in_threads(remove, [part for _, part in turns])
        hash_rows: list[str] = []
        for outcome in outcomes:
            if isinstance(outcome, StoreFault):
                self._on_fault(outcome.fault, outcome.detail)
                self._skipped = True
                continue
            for _, was in outcome:
                done.artifacts += 1
                done.freed += disk_bytes(was.st_size)
                place = Identity(was.st_dev, was.st_ino, was.st_size, was.st_mtime_ns, was.st_ctime_ns)
                hash_rows.append(row_name(place, 0, was.st_size))
        for names in _batches(hash_rows, 1000):
            self._store.index.delete_many(names)

    def _finish(self, snapshot: Survey, names: Collection[str], started: Usage | None, done: CollectResult) -> None:
        """Everything that was condemned is gone: forget it, and say how large the store is now. names: of entries."""
        index = self._store.index
        condemned = [] if self._skipped else list(index.keys(prefix="condemned:"))
        unneeded = [name for name in index.keys(prefix="facts:") if name.removeprefix("facts:") not in snapshot.facts]
        unneeded += derived_cache.forgotten(index, self._now)
        unneeded += nearest_keys.forgotten(index, names)

        def change() -> None:
            index.delete_many(condemned)
            index.delete_many(unneeded)
            # One that is still of use is worked out anew once in that time; of the others there would be ever more.
            index.expire("digest:", self._now - FORGOTTEN_SECONDS, self._now + FORGOTTEN_SECONDS)
            index.expire(
                tombstones.PREFIX, self._now - tombstones.RETENTION_SECONDS, self._now + tombstones.RETENTION_SECONDS
            )
            now = self._usage()
            # What was published meanwhile may be counted twice: the figure is never too small for that.
            meanwhile = 0 if now is None or started is None else max(0, now.nbytes - started.nbytes)
            rest = 0 if done.is_within else done.after
            fresh = Usage(version=RECORD_VERSION, nbytes=done.after + meanwhile, rest=rest)
            index.write(store_size.ROW, pack(fresh), store_size.TAG)

        index.atomically(change)

    def _usage(self) -> Usage | None:
        try:
            return self._store.usage()
        except StoreFault as fault:
            self._on_fault(fault.fault, fault.detail)  # it is written anew
            return None


def _release_needs(counts: Counter[Digest], needs: Iterable[Digest]) -> list[Digest]:
    """Count one need less of each artifact; those that nothing needs now."""
    freed = []
    for digest in needs:
        counts[digest] -= 1
        if counts[digest] <= 0:
            freed.append(digest)
    return freed


def _batches(items: Sequence[T], size: int | None = None) -> Iterator[Sequence[T]]:
    step = size or BATCH
    return (items[start : start + step] for start in range(0, len(items), step))
