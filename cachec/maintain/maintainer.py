"""The one object that search, invalidation, pins and ``gc`` are reached by."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from cachec.base import fsio
from cachec.errors import StoreFault, UsageError
from cachec.maintain.pins import Pins
from cachec.model import RECORD_VERSION, Digest, Fault
from cachec.store import store_size
from cachec.store.row_codec import pack
from cachec.store.store import Store
from cachec.store.store_size import Usage, disk_bytes

if TYPE_CHECKING:  # each asks for one of these at most: for its size, as `stats` does, for none
    from cachec.maintain.catalogue import Item
    from cachec.maintain.collect import CollectResult
    from cachec.maintain.plans import InvalidationPlan
    from cachec.maintain.selector import Selector
    from cachec.maintain.suggestions import UnmatchedOption


class Maintainer:
    """Maintains one store. Opening it looks at nothing."""

    def __init__(
        self,
        store: Store,
        *,
        max_size: int = 0,
        base_dir: str | os.PathLike[str] | None = None,
        on_fault: Callable[[Fault, str], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """max_size: bytes that ``collect`` keeps, 0 for no limit. base_dir: the setting, for selectors by file.

        on_fault: told of what was left out, and why.
        """
        self.store = store
        self._base_dir = None if base_dir is None else os.fspath(base_dir)
        self.max_size = max_size
        self.pins = Pins(store.index, store.quoted, clock)
        self._on_fault = on_fault or (lambda _fault, _detail: None)
        self._clock = clock

    # --- search

    def find(self, selector: Selector) -> Iterator[Item]:
        """The entries of this namespace that a selector means, in the order of their keys. Raises CachecError.

        A row that can't be read is told and left out, except that its whole key is given: see ``plan``.
        """
        from cachec.maintain.catalogue import Catalogue, DamagedRow
        from cachec.maintain.selector import matcher
        from cachec.maintain.snapshot import Surroundings

        fits = matcher(selector, Surroundings(self.store, self._base_dir, self._on_fault), self._clock())
        for item in Catalogue(self.store, self._on_fault).items(summaries=selector.needs_summaries):
            if isinstance(item, DamagedRow):
                self._on_fault(item.fault.fault, item.fault.detail)
            elif fits(item):
                yield item

    def unmatched(self, selector: Selector) -> list[UnmatchedOption]:
        """What of a selector no entry has at all, each with what comes near to it. Raises CachecError."""
        from cachec.maintain.catalogue import Catalogue, Item
        from cachec.maintain.snapshot import Surroundings
        from cachec.maintain.suggestions import unmatched  # for messages alone

        around = Surroundings(self.store, self._base_dir, self._on_fault)
        items = Catalogue(self.store, self._on_fault).items()
        return unmatched(selector, (each for each in items if isinstance(each, Item)), around, self._clock())

    # --- invalidation

    def plan(self, selector: Selector, *, force: bool = False) -> InvalidationPlan:
        """What forgetting the entries that a selector means would cost. Changes nothing.

        force: pinned ones too. A damaged row is meant where its whole key, and nothing else, is asked for. Raises
        CachecError.
        """
        from cachec.maintain.catalogue import Catalogue, DamagedRow
        from cachec.maintain.plans import InvalidationPlan, chosen_of
        from cachec.maintain.selector import matcher
        from cachec.maintain.snapshot import Surroundings

        around = Surroundings(self.store, self._base_dir, self._on_fault)
        fits = matcher(selector, around, self._clock())
        pinned = self.pins.read()
        whole = frozenset(key.lower() for key in selector.keys if len(key) == 64)
        by_key = msgspec.structs.replace(selector, keys=()).is_empty
        chosen, kept, known = [], [], set()
        sizes: dict[Digest, int] = {}
        needed: set[Digest] = set()
        catalogue = Catalogue(self.store, self._on_fault)
        for item in catalogue.items(every=True, summaries=selector.needs_summaries):
            key, is_ours = item.name.rpartition(":")[2], self._is_ours(item.name)
            if is_ours and key in whole:
                known.add(key)
            if isinstance(item, DamagedRow):
                if by_key and is_ours and key in whole and item.fault.fault.is_of_a_row:
                    if not force and pinned.holds(item.name, ()):
                        kept.append(key)
                    else:
                        chosen.append(chosen_of(item))
                continue
            is_meant = is_ours and fits(item)
            if is_meant and not force and pinned.holds(item.name, item.entry.tags):
                kept.append(key)
                is_meant = False
            if is_meant:
                chosen.append(chosen_of(item, around.stale(item) if selector.stale else ""))
                sizes.update(item.sizes())
            else:
                needed.update(item.sizes())
        nbytes = sum(disk_bytes(size) for digest, size in sizes.items() if digest not in needed)
        return InvalidationPlan(self.store, self.pins, chosen, kept, known, nbytes, force=force)

    def _is_ours(self, name: str) -> bool:
        return name.startswith(self.store.quoted) and ":" not in name.removeprefix(self.store.quoted)

    # --- gc

    def limit(self, nbytes: int) -> int | None:
        """The bytes that a store of ``nbytes`` may have: ``max_size``, and no more than its share of the disk; None for
        no limit. Raises StoreFault.
        """
        return store_size.limit(self.max_size, self.store.folder, nbytes)

    def usage(self) -> Usage:
        """How large the store is; measured where nobody has yet, which is then remembered. Raises StoreFault."""
        counted = self._stored_usage()
        return self.measure() if counted is None else counted

    def estimate(self) -> Usage:
        """The same, without remembering anything: for who only looks. Raises StoreFault."""
        counted = self._stored_usage()
        return self.measure_usage() if counted is None else counted

    def _stored_usage(self) -> Usage | None:
        """What the counter says; a damaged one, which is told, says nothing."""
        try:
            return self.store.usage()
        except StoreFault as fault:
            if not fault.fault.is_of_a_row:
                raise
            self._on_fault(fault.fault, fault.detail)
            return None

    def measure_usage(self) -> Usage:
        """How large the store is, by looking at every file. Raises StoreFault.

        What only entries of other versions need does not count (collect.py).
        """
        from cachec.weights.library.stored_weights import WeightStore

        objects = self.store.objects
        owned = WeightStore(self.store).list_needed(lambda detail: self._on_fault(Fault.IO_ERROR, detail))
        if any(version != RECORD_VERSION for version in self.store.index.versions()):
            from cachec.maintain.mark import survey

            nbytes = survey(self.store, self.pins.read(), self._on_fault, self._clock(), owned).nbytes
        else:
            nbytes = sum(disk_bytes(ref.size) for ref, _ in objects.iterate() if ref.digest not in owned)
            nbytes += objects.trees.copied_bytes()
        return Usage(version=RECORD_VERSION, nbytes=nbytes)

    def measure(self) -> Usage:
        """Measure how large the store is, and remember it where the store can be written."""
        measured = self.measure_usage()
        try:
            with fsio.faults(f"looking for {self.store.folder}"):
                is_there = self.store.folder.is_dir()
            if is_there:
                self.store.index.write(store_size.ROW, pack(measured), store_size.TAG)
        except StoreFault as fault:
            self._on_fault(fault.fault, fault.detail)
        return measured

    def collect(
        self, *, limit: int | None = None, older_than: float | None = None, dry_run: bool = False
    ) -> CollectResult:
        """Run ``gc``. limit: bytes to come down to, by default what the store may have; 0 for no limit.

        older_than: evict, beside, what was not used for so many seconds. Raises UsageError, StoreFault.
        """
        from cachec.maintain.collect import Collector

        if older_than is not None and not older_than >= 0:
            raise UsageError(f"older_than expected seconds, 0 or more; found {older_than!r}")
        down_to = limit or None
        if limit is None:  # a dry run writes nothing, not even what it has measured
            down_to = self.limit((self.estimate() if dry_run else self.usage()).nbytes)
        collector = Collector(self.store, self._on_fault, self._clock, dry_run=dry_run)
        return collector.run(down_to, older_than)

    def keep_bound(self, counted: Usage | None) -> CollectResult | None:
        """To be called after a publication, with the size of the store: ``gc`` if it has grown beyond its limit.

        It then comes down to ``bound.LOW_WATER`` of the limit, so that not every publication pays for it.
        """
        usage_ = counted or self.measure()
        limit = self.limit(usage_.nbytes)
        if limit is None or not store_size.is_due(usage_, limit):
            return None
        return self.collect(limit=max(1, int(limit * store_size.LOW_WATER)))
