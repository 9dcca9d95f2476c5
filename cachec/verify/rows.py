"""Rows against files: what entries and weights need must be there, and whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cachec.errors import StoreFault, WeightError
from cachec.maintain.catalogue import Catalogue, DamagedRow, Item
from cachec.model import Digest, Fault
from cachec.store.index import DiskcacheIndex
from cachec.store.objects import GONE
from cachec.store.store import Store, products
from cachec.weights.library.stored_weights import WeightStore

#: Entries that are put away in one transaction.
_BATCH = 256


class Problem(NamedTuple):
    """Something that is not what it should be.

    kind: ``index``, ``artifact``, ``row``, ``entry`` or ``weights``. name: a digest, a key or the name of weights.
    stage: of an entry. put_away: whether it can't hit any more from now on.
    """

    kind: str
    name: str
    words: str
    stage: str = ""
    put_away: bool = False


def check_index(store: Store) -> Iterator[Problem]:
    """The database, in full. Raises StoreFault."""
    damage = store.index.damage() if isinstance(store.index, DiskcacheIndex) else ""
    if damage:
        yield Problem("index", "cache.db", f"{damage}; the next call that stores something moves it aside")


def check_rows(
    store: Store, damaged: Mapping[Digest, str], there: Mapping[Digest, int], on_fault: Callable[[Fault, str], None]
) -> Iterator[Problem]:
    """Everything that needs what is damaged, or not there. Entries that can't hit with it are put away.

    damaged: in words. there: the artifacts that were found, with their bytes. Raises StoreFault.
    """
    wrong = _Wrong(store, damaged, there)
    broken: list[_BrokenEntry] = []
    for item in Catalogue(store, on_fault).items(every=True, summaries=False):
        if isinstance(item, DamagedRow):
            yield Problem("row", item.name.rpartition(":")[2], item.fault.detail)
            continue
        broken += _of_entry(store, item, wrong)
        if len(broken) == _BATCH:
            yield from _put_away(store, broken, on_fault)
            broken.clear()
    yield from _put_away(store, broken, on_fault)
    for revision in WeightStore(store).revisions():
        try:
            lost = [(name, words) for name, digest in revision.digests.items() if (words := wrong.of(digest))]
        except WeightError as error:
            yield Problem("weights", revision.name, str(error))
            continue
        if lost:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            yield Problem("weights", revision.name, f"{lost[0][0]!r}{more}: {lost[0][1]}; add them again")


class _Wrong:
    """What is wrong with an artifact: its digest and size in a row, against what was found."""

    def __init__(self, store: Store, damaged: Mapping[Digest, str], there: Mapping[Digest, int]) -> None:
        self._store, self._damaged, self._there = store, damaged, there

    def of(self, digest: Digest, size: int | None = None) -> str:
        """In words; empty where nothing is."""
        if digest in self._damaged:
            return self._damaged[digest]
        found = self._there.get(digest)
        if found is None:  # stored since the look, or gone
            try:
                found = os.lstat(self._store.objects.place(digest)).st_size
            except OSError:
                return GONE
        return "" if size is None or found == size else f"it has {found} bytes, where {size} are recorded"


class _BrokenEntry(NamedTuple):
    """An entry with what is wrong. store: of its namespace. is_fatal: whether it can't be handed out."""

    store: Store
    problem: Problem
    is_fatal: bool


def _of_entry(store: Store, item: Item, wrong: _Wrong) -> Iterator[_BrokenEntry]:
    needed = {ref.digest for trace in item.entry.traces for ref in products(trace)}
    broken = {digest: words for digest, size in item.sizes().items() if (words := wrong.of(digest, size))}
    if not broken:
        return
    namespace, _, key = item.name.rpartition(":")
    its_store = _in_namespace(store, namespace)
    if its_store.index.read(its_store.entry_row(key)) is None:
        return  # evicted during the check, with its artifacts
    fatal = next((digest for digest in broken if digest in needed), "")
    digest = fatal or next(iter(broken))
    words = f"artifact {digest[:12]}: {broken[digest]}"
    if not fatal:
        words += "; it hits all the same, but why and repro lack it"
    yield _BrokenEntry(its_store, Problem("entry", key, words, item.entry.stage), bool(fatal))


def _put_away(store: Store, broken: Sequence[_BrokenEntry], on_fault: Callable[[Fault, str], None]) -> list[Problem]:
    """The problems, once the entries are put away that can't be handed out, where the store can be written."""

    def change() -> list[Problem]:
        return [
            each.problem._replace(
                put_away=each.is_fatal and each.store.quarantine(each.problem.name, each.problem.words)
            )
            for each in broken
        ]

    try:
        return store.index.atomically(change) if any(each.is_fatal for each in broken) else [b.problem for b in broken]
    except StoreFault as fault:
        on_fault(fault.fault, fault.detail)
        return [each.problem for each in broken]


def _in_namespace(store: Store, quoted: str) -> Store:
    name = quoted.replace("%3A", ":").replace("%25", "%")
    return store if name == store.namespace else Store(store.folder, name, index=store.index)
