"""What there is: one look at rows, files and uses, with what refers to what. Nothing is changed here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import chain

import msgspec

from cachec.codecs.files import tree_of
from cachec.errors import StoreFault
from cachec.events import read_log
from cachec.maintain.catalogue import Catalogue, DamagedRow, Item
from cachec.maintain.eviction_score import Levels, UseCount, uses, worth
from cachec.maintain.pins import PinTable
from cachec.model import RECORD_VERSION, Digest, Fault, Leaf, Node, Record, Sequence, artifacts
from cachec.store.leases import LeasedArtifacts
from cachec.store.row_codec import state, unpack
from cachec.store.store import QuarantinedRow, Store
from cachec.store.store_size import disk_bytes

#: Seconds that an entry which was put away stays, to be looked at.
QUARANTINE_SECONDS = 7 * 86400.0

_DIGEST = re.compile(rb"[0-9a-f]{64}")


class Candidate(msgspec.Struct):
    """An entry, as far as eviction needs it.

    needs: all artifacts that it refers to. groups: of each trace those that a caller is handed. trees: those that a
    caller is handed. size: bytes on disk of
    its results, seconds: how long its stage runs; last: Unix time of its last use.
    """

    name: str
    state: bytes
    tags: tuple[str, ...]
    needs: tuple[Digest, ...]
    groups: tuple[tuple[Digest, ...], ...]
    trees: tuple[Digest, ...]
    size: int
    seconds: float
    last: float
    worth: float

    @property
    def order(self) -> tuple[float, float, str]:
        """By which entries are evicted, the smallest first."""
        return self.worth, self.last, self.name

    def in_use(self, held: LeasedArtifacts) -> bool:
        """Whether a living process was handed one of its results."""
        return any(tree in held for tree in self.trees) or any(
            all(digest in held for digest in group) for group in self.groups
        )


class Survey(msgspec.Struct):
    """The state of a store.

    objects: digest -> (bytes on disk, mtime). owned: those that weights with a name, or in use, need; they are not
    counted as the cache's. counts: how many entries, and owned weights, need an artifact. broken: (name, state) of rows
    that can never hit. put_away: names of rows of quarantined entries that are old. condemned: rows that an earlier gc
    left, by name, with the artifacts that it was about to remove. unsummarised: entries without a summary.
    old_versions: entries of versions of the records that are not used any more, by version; nothing of them counts.
    others: names in the file of the rows of entries of the other versions; others_need: artifacts that they need.
    """

    objects: dict[Digest, tuple[int, float]]
    copied: int = 0
    owned: Collection[Digest] = ()
    entries: list[Candidate] = []
    counts: Counter[Digest] = msgspec.field(default_factory=Counter)
    trees: Counter[Digest] = msgspec.field(default_factory=Counter)
    broken: list[tuple[str, bytes]] = []
    put_away: list[str] = []
    condemned: dict[str, frozenset[Digest]] = {}
    facts: set[Digest] = set()
    unsummarised: list[Item] = []
    old_versions: dict[int, int] = {}
    others: set[str] = set()
    others_need: set[Digest] = set()
    pinned: PinTable = msgspec.field(default_factory=lambda: PinTable(()))
    levels: Levels = msgspec.field(default_factory=lambda: Levels(version=RECORD_VERSION))

    @property
    def nbytes(self) -> int:
        """Bytes on disk of all artifacts, and of what trees hold beside them.

        Owned weights do not count, nor does what only entries of other versions need: each version bounds its own.
        """
        counted = (
            size
            for digest, (size, _) in self.objects.items()
            if digest not in self.owned and (digest not in self.others_need or self.counts[digest] > 0)
        )
        return sum(counted) + self.copied


def survey(
    store: Store,
    pinned: PinTable,
    on_fault: Callable[[Fault, str], None],
    now: float,
    owned: Collection[Digest],
    old: Collection[int] = (),
) -> Survey:
    """Look at everything. owned: what revisions of weights need. old: versions to be removed. Raises StoreFault.

    Files first: an artifact that comes later is not in ``objects``, and nobody removes what is not there.
    """
    objects = {ref.digest: (disk_bytes(ref.size), mtime) for ref, mtime in store.objects.iterate()}
    snapshot = Survey(objects, owned=owned, pinned=pinned, levels=levels_of(store))
    snapshot.counts.update(owned)
    used = uses(read_log(store.folder))
    names = {digest: digest for digest in objects}  # one str a digest, however many entries name it
    for item in Catalogue(store, on_fault).items(every=True):
        if isinstance(item, DamagedRow):
            snapshot.broken.append((item.name, b"" if item.row is None else state(item.row)))
            continue
        sizes = item.sizes()
        kept = candidate(item, sizes, used, snapshot.levels, now, names, on_fault)
        for digest, size in sizes.items():  # a damaged file may be of any: nothing is evicted for that
            found = objects.get(digest)
            if found is not None and disk_bytes(size) < found[0]:
                objects[digest] = (disk_bytes(size), found[1])
        snapshot.entries.append(kept)
        if item.terms is not None:
            snapshot.facts.add(item.terms.summary.facts)
            if not item.is_summarised:
                snapshot.unsummarised.append(item)
    for version in store.index.versions():
        if version in old:
            snapshot.old_versions[version] = sum(1 for _ in _entries_of(store, version))
        elif version != RECORD_VERSION:
            snapshot.others.update(f"{version}:{name}" if version else name for name in _entries_of(store, version))
            snapshot.others_need.update(_needed_by(store, version))
    snapshot.counts.update(chain.from_iterable(each.needs for each in snapshot.entries))
    snapshot.trees.update(chain.from_iterable(each.trees for each in snapshot.entries))
    snapshot.copied = store.objects.trees.copied_bytes(snapshot.trees if snapshot.others else None)
    for name, row in store.index.rows("quarantine:"):
        if _is_old(name, row, now):
            snapshot.put_away.append(name)
        elif row is not None:
            snapshot.counts.update(_named_in(unpack(row, QuarantinedRow, name).row))
    for name, row in store.index.rows("condemned:"):
        snapshot.condemned[name] = frozenset() if row is None else frozenset(_named_in(row))
    return snapshot


def levels_of(store: Store) -> Levels:
    """The row ``gc:``; a damaged one is as none."""
    try:
        row = store.index.read("gc:")
        return Levels(version=RECORD_VERSION) if row is None else unpack(row, Levels, "gc:")
    except StoreFault as fault:
        if fault.fault not in {Fault.ROW_CORRUPT, Fault.ROW_VERSION, Fault.ROW_REFUSED}:
            raise
        return Levels(version=RECORD_VERSION)


def candidate(
    item: Item,
    sizes: dict[Digest, int],
    used: dict[Digest, UseCount],
    levels: Levels,
    now: float,
    names: dict[Digest, Digest],
    on_fault: Callable[[Fault, str], None],
) -> Candidate:
    """An entry as eviction sees it. sizes: ``item.sizes()``. names: one str a digest, which grows."""
    entry, created = item.entry, item.created
    use = used.get(entry.key) or UseCount(1, created)
    last = min(max(use.last, created), now)
    groups = tuple(
        group for trace in entry.traces if (group := tuple(_intern_digests(names, artifacts_of(trace.value))))
    )
    # The size is that of its own results, not of what it shares: it must not depend on which entries are still there.
    size = sum(disk_bytes(sizes[digest]) for digest in frozenset[Digest]().union(*groups))
    seconds = max((trace.seconds for trace in entry.traces), default=0.0)
    needs = {*sizes, *(() if item.terms is None else item.terms.summary.artifacts)}
    try:
        trees = tuple(_trees(item))
    except StoreFault as fault:  # a folder that is stored malformed: it has no tree, and no call hits it
        on_fault(fault.fault, fault.detail)
        trees = ()
    return Candidate(
        name=item.name,
        state=item.state,
        tags=entry.tags,
        needs=tuple(_intern_digests(names, needs)),
        groups=groups,
        trees=trees,
        size=size,
        seconds=seconds,
        last=last,
        worth=worth(levels.at(last), use.times, seconds, size),
    )


def _trees(item: Item) -> Iterator[Digest]:
    """The trees that an entry is handed out as. Raises StoreFault where a stored folder is malformed."""
    return (tree_of(leaf) for trace in item.entry.traces for leaf in leaves(trace.value) if leaf.codec == "dir")


def _needed_by(store: Store, version: int) -> set[Digest]:
    """Return whatever the entries of a version of the records may need.

    What a record of another version says is not known: each word in it that looks like a digest counts.
    """
    needed: set[Digest] = set()
    for kind in ("entry:", "summary:", "quarantine:"):
        for _, row in store.index.rows(kind, version=version):
            needed.update(_named_in(row or b""))
    return needed


def _entries_of(store: Store, version: int) -> Iterator[str]:
    return (name for name, _ in store.index.rows("entry:", version=version))


def _is_old(name: str, row: bytes | None, now: float) -> bool:
    if row is None:
        return True
    try:
        return now - unpack(row, QuarantinedRow, name).time > QUARANTINE_SECONDS
    except StoreFault:
        return True


def _named_in(row: bytes) -> list[Digest]:
    """Everything in a row that may be the digest of an artifact, whatever the row is."""
    return [match.decode() for match in _DIGEST.findall(row)]


def _intern_digests(names: dict[Digest, Digest], digests: set[Digest] | Iterator[Digest]) -> Iterator[Digest]:
    return (names.setdefault(digest, digest) for digest in digests)


def artifacts_of(value: Node) -> Iterator[Digest]:
    """The artifacts of a stored value."""
    return (ref.digest for ref in artifacts(value))


def leaves(node: Node) -> Iterator[Leaf]:
    """Every leaf of a stored value."""
    if isinstance(node, Leaf):
        yield node
    elif isinstance(node, Sequence | Record):
        for item in node.items:
            yield from leaves(item)
