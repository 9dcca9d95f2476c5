"""Who is evicted next: every entry in the order of its worth, for who only looks. Nothing is changed or locked here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from cachec.maintain.catalogue import Catalogue, DamagedRow
from cachec.maintain.eviction_score import UseCount
from cachec.maintain.mark import Candidate, candidate, levels_of
from cachec.maintain.pins import Pins
from cachec.model import Digest, Fault
from cachec.store.leases import LeasedArtifacts
from cachec.store.store import Store


class RankedEntry(NamedTuple):
    """An entry in the order of eviction. uses: hits, and runs that were stored. kept: why ``gc`` would leave it:
    ``pinned``, ``in use`` or empty."""

    stage: str
    entry: Candidate
    uses: int
    kept: str

    @property
    def key(self) -> Digest:
        """The key."""
        return self.entry.name.rpartition(":")[2]


def ranking(
    store: Store,
    used: dict[Digest, UseCount],
    on_fault: Callable[[Fault, str], None],
    clock: Callable[[], float] = time.time,
) -> list[RankedEntry]:
    """The entries of every namespace, those that ``gc`` takes first at the beginning. Raises StoreFault.

    used: of the whole log. on_fault: told of rows that were left out.
    """
    now, levels = clock(), levels_of(store)
    pinned = Pins(store.index, store.quoted).read()
    held = LeasedArtifacts(store.leases.folder)
    held.drop_dead(remove=False)
    held.refresh()
    names: dict[Digest, Digest] = {}
    standings = []
    for item in Catalogue(store, on_fault).items(every=True, summaries=False):
        if isinstance(item, DamagedRow):
            on_fault(item.fault.fault, item.fault.detail)
            continue
        entry = candidate(item, item.sizes(), used, levels, now, names, on_fault)
        kept = "pinned" if pinned.holds(item.name, entry.tags) else "in use" if entry.in_use(held) else ""
        times = used.get(item.entry.key, UseCount(1, 0.0)).times
        standings.append(RankedEntry(item.entry.stage, entry, times, kept))
    return sorted(standings, key=lambda each: each.entry.order)
