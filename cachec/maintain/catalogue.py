"""Every entry of a store, with what its key says, read row by row in the order of the names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from cachec.errors import StoreFault
from cachec.model import Digest, Entry, Fault
from cachec.store.row_codec import state, unpack
from cachec.store.search_index import CallSummary, Facts, SearchTerms, search_terms
from cachec.store.store import Store, references


class Item(msgspec.Struct, frozen=True):
    """An entry as it was read.

    name: namespace (as in the names of rows) and key, joined by a colon. terms: what its key says; None where its parts
    can't be read, or where it was not asked for. is_summarised: whether that came from rows, not from the artifact.
    state: tells one value of the row from another.
    """

    name: str
    entry: Entry
    terms: SearchTerms | None
    is_summarised: bool
    state: bytes

    @property
    def created(self) -> float:
        """Unix time of the newest trace; 0 without any."""
        return max((trace.created for trace in self.entry.traces), default=0.0)

    @property
    def seconds(self) -> float:
        """How long its stage ran, over all traces."""
        return sum(trace.seconds for trace in self.entry.traces)

    def sizes(self) -> dict[Digest, int]:
        """Every artifact that a trace or the parts need, with its bytes."""
        return {ref.digest: ref.size for ref in references(self.entry)}


class DamagedRow(msgspec.Struct, frozen=True):
    """A row that is no entry of this version."""

    name: str
    row: bytes | None
    fault: StoreFault


class Catalogue:
    """Reads entries with their summaries. One pass; remembers the facts that many entries share."""

    def __init__(self, store: Store, on_fault: Callable[[Fault, str], None]) -> None:
        """on_fault: told of summaries and facts that are damaged, and of parts that are read in their place."""
        self._store = store
        self._index = store.index
        self._on_fault = on_fault
        self._facts: dict[Digest, Facts | None] = {}

    def items(self, *, every: bool = False, summaries: bool = True) -> Iterator[Item | DamagedRow]:
        """The entries of the store's namespace, or of ``every`` one.

        summaries: whether ``terms`` are wanted; without, it is None, and half of the time is saved.
        """
        prefix = "" if every else self._store.quoted
        ahead = _OrderedRows(self._index.rows(f"summary:{prefix}"), "summary:") if summaries else None
        for full, row in self._index.rows(f"entry:{prefix}"):
            name = full.removeprefix("entry:")
            try:
                if row is None:
                    raise StoreFault(Fault.ROW_REFUSED, f"row {full} is not plain bytes")
                key = name.rpartition(":")[2]
                entry = unpack(row, Entry, full)
                if entry.key != key:
                    raise StoreFault(Fault.ROW_FOREIGN, f"the row of {key} holds the entry of {entry.key}")
            except StoreFault as fault:
                yield DamagedRow(name, row, fault)
                continue
            if ahead is None:
                yield Item(name, entry, None, True, state(row))
                continue
            terms = self._terms(key, ahead.at(name))
            yield Item(name, entry, terms or self._read(entry), terms is not None, state(row))

    def _terms(self, key: Digest, row: bytes | None) -> SearchTerms | None:
        """What the summary row says; None where it, or its facts, can't be used."""
        if row is None:
            return None
        try:
            summary = unpack(row, CallSummary, f"summary of {key}")
        except StoreFault as fault:
            self._on_fault(fault.fault, fault.detail)
            return None
        facts = self._facts_of(summary.facts)
        return None if facts is None or summary.key != key else SearchTerms(summary, facts)

    def _facts_of(self, name: Digest) -> Facts | None:
        if name not in self._facts:
            facts: Facts | None = None
            try:
                row = self._index.read(f"facts:{name}")
                facts = None if row is None else unpack(row, Facts, f"facts:{name}")
            except StoreFault as fault:
                self._on_fault(fault.fault, fault.detail)
            self._facts[name] = facts if facts is not None and facts.name() == name else None
        return self._facts[name]

    def _read(self, entry: Entry) -> SearchTerms | None:
        """From the artifact: slow, for entries without a summary. Facts that many share are kept once."""
        try:
            read = search_terms(entry.key, self._store.parts_of(entry.parts))
        except StoreFault as fault:
            self._on_fault(fault.fault, fault.detail)
            return None
        return SearchTerms(read.summary, self._facts.get(read.summary.facts) or read.facts)


class _OrderedRows:
    """Rows in order, asked for in the same order."""

    def __init__(self, rows: Iterator[tuple[str, bytes | None]], prefix: str) -> None:
        self._rows = rows
        self._prefix = prefix
        self._next: tuple[str, bytes | None] | None = next(rows, None)

    def at(self, name: str) -> bytes | None:
        """The row of that name, if there is one."""
        wanted = self._prefix + name
        while self._next is not None and self._next[0] < wanted:
            self._next = next(self._rows, None)
        return self._next[1] if self._next is not None and self._next[0] == wanted else None
