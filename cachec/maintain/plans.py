"""Invalidation: a plan that says what would be lost, then its application."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from cachec.errors import StoreFault
from cachec.maintain.catalogue import DamagedRow, Item
from cachec.maintain.pins import Pins, PinTable
from cachec.model import Digest, Fault
from cachec.store.row_codec import state
from cachec.store.store import Store
from cachec.store.tombstones import forget

#: Entries of one transaction: who publishes waits for it, some hundredths of a second.
BATCH = 500


class PlannedRemoval(NamedTuple):
    """An entry that a plan would take.

    created: Unix time, None of a damaged row, whose stage is empty. size: bytes of its artifacts. seconds: how long
    its stage ran, over all traces: what is lost. why: what makes it stale, if that was asked. state: of its row.
    """

    name: str
    key: Digest
    stage: str
    tags: tuple[str, ...]
    created: float | None
    size: int
    seconds: float
    why: str
    state: bytes


class PlanResult(NamedTuple):
    """What came of a plan: keys that were removed; left because they were made anew, or pinned, or gone, meanwhile."""

    removed: tuple[Digest, ...]
    changed: tuple[Digest, ...]
    pinned: tuple[Digest, ...]


class InvalidationPlan:
    """Which entries would be forgotten.

    chosen: in the order of their keys. pinned: entries that the selector means, and that stay. known: the whole keys of
    the selector that the store has, meant or not. nbytes: what ``gc`` can free then: bytes that no other entry needs.
    seconds: of compilation that would be lost.
    """

    def __init__(
        self,
        store: Store,
        pins: Pins,
        chosen: Sequence[PlannedRemoval],
        pinned: Sequence[Digest],
        known: Collection[Digest],
        nbytes: int,
        *,
        force: bool,
    ) -> None:
        self.chosen = tuple(chosen)
        self.pinned = tuple(pinned)
        self.nbytes = nbytes
        self.seconds = sum(each.seconds for each in chosen)
        self.known = frozenset(known)
        self._store = store
        self._pins = pins
        self._force = force

    def __len__(self) -> int:
        return len(self.chosen)

    def apply(self, progress: Callable[[int, int], None] | None = None) -> PlanResult:
        """Forget these entries; their files stay until ``gc``. Raises StoreFault; what was done before stays done.

        An entry that was made anew since the plan, or pinned, is left. progress: called with entries done, and in all.
        """
        removed: list[Digest] = []
        changed: list[Digest] = []
        pinned: list[Digest] = []
        for start in range(0, len(self.chosen), BATCH):
            batch = self.chosen[start : start + BATCH]
            kept = PinTable(()) if self._force else self._pins.read()
            stays = [each for each in batch if kept.holds(each.name, each.tags)]
            pinned += [each.key for each in stays]
            rows = [(each.name, each.state) for each in batch if each not in stays]
            created = {each.name: each.created or 0.0 for each in batch}
            gone = remove_rows(self._store, rows, partial(self._forget, created))
            removed += [each.key for each in batch if each.name in gone]
            changed += [each.key for each in batch if each not in stays and each.name not in gone]
            if progress is not None:
                progress(start + len(batch), len(self.chosen))
        return PlanResult(tuple(removed), tuple(changed), tuple(pinned))

    def _forget(self, created: Mapping[str, float], gone: frozenset[str]) -> None:
        forget(self._store.index, self._store.folder, {name: created[name] for name in gone})


def remove_rows(
    store: Store,
    rows: Iterable[tuple[str, bytes]],
    beside: Callable[[frozenset[str]], None] | None = None,
) -> frozenset[str]:
    """Remove entries that are still in the given state, in one transaction; which (by name) were removed.

    beside: run in the same transaction, with these names.
    """
    wanted = dict(rows)

    def change() -> frozenset[str]:
        gone = frozenset(name for name, was in wanted.items() if _is_in_state(store, f"entry:{name}", was))
        # One kind after the other: neighbours in the table.
        rows_of = [f"{kind}:{name}" for kind in ("entry", "summary") for name in sorted(gone)]
        store.index.delete_many(rows_of)
        if beside is not None:
            beside(gone)
        return gone

    return store.index.atomically(change)


def _is_in_state(store: Store, row_name: str, was: bytes) -> bool:
    try:
        row = store.index.read(row_name)
    except StoreFault as fault:
        if fault.fault is not Fault.ROW_REFUSED:
            raise
        return was == b""  # still as foreign as it was
    return row is not None and state(row) == was


def chosen_of(item: Item | DamagedRow, why: str = "") -> PlannedRemoval:
    """An item as a plan has it."""
    key = item.name.rpartition(":")[2]
    if isinstance(item, DamagedRow):
        return PlannedRemoval(item.name, key, "", (), None, 0, 0.0, why, b"" if item.row is None else state(item.row))
    size = sum(item.sizes().values())
    entry = item.entry
    return PlannedRemoval(item.name, key, entry.stage, entry.tags, item.created, size, item.seconds, why, item.state)
