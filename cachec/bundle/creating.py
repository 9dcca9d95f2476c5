"""Making a bundle of what is in a store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from cachec.base import fsio
from cachec.base.display_text import to_type
from cachec.base.hashing import digest_bytes
from cachec.bundle.format import (
    BLOCK,
    END,
    FORMAT,
    VERSION,
    BundledObject,
    BundledRecord,
    BundledWeights,
    BundleMember,
    BundlePlan,
    BundleSignature,
    BundleTable,
    header,
    padding,
    plan_bundle,
)
from cachec.bundle.transfer import Transfer, for_each, write_at
from cachec.errors import StoreFault, UsageError
from cachec.model import ArtifactRef, Entry, Fault
from cachec.remote.keys import Signer
from cachec.store.objects import HASHED_BELOW, is_sealed
from cachec.store.store import Store, references
from cachec.weights.io.copying import naming_full_disk
from cachec.weights.library.stored_weights import WeightStore


class CreateResult(NamedTuple):
    """What a bundle holds. left_out: entries that did not fit. unusable: those whose artifacts are not all there.

    size: bytes of the file.
    """

    entries: int
    objects: int
    weights: int
    left_out: int
    unusable: int
    size: int


class _BundleContent:
    """What is to be in a bundle, by its name there."""

    def __init__(self) -> None:
        self.objects: dict[str, int] = {}
        self.entries: dict[str, bytes] = {}
        self.weights: dict[str, bytes] = {}

    def table(self, signer: str) -> BundleTable:
        return BundleTable(
            FORMAT,
            VERSION,
            tuple(BundledObject(digest, size) for digest, size in sorted(self.objects.items())),
            _records(self.entries),
            _records(self.weights),
            signer,
        )


def create(
    store: Store,
    keys: Iterable[str],
    path: str | os.PathLike[str],
    *,
    weights: Sequence[str] = (),
    max_size: int = 0,
    signer: Signer | None = None,
) -> CreateResult:
    """Write the entries of ``keys`` to ``path``, replacing it at once; those that are gone, or damaged, are left out.

    weights: names of owned weights that come along. max_size: bytes of the bundle, 0 for no limit; entries that save
    most seconds a byte come first, weights in any case. Raises StoreFault where the store can't be read, UsageError for
    weights that are not owned, WeightError, and OSError where ``path`` can't be written.
    """
    wanted = [*dict.fromkeys(keys)]
    entries = [entry for key in wanted if (entry := _usable(store, key)) is not None]
    chosen = _BundleContent()
    _choose_weights(chosen, WeightStore(store), weights)
    public = "" if signer is None else signer.public
    count = _choose_entries(chosen, entries, max_size, public)
    table = chosen.table(public)
    data = msgspec.json.encode(table)
    plan = plan_bundle(table, len(data))
    target = os.path.abspath(path)
    with (
        naming_full_disk(target, "nothing is written there"),
        fsio.Staging(os.path.dirname(target), ".cachec-bundle-") as staged,
    ):
        _write(staged.fd, plan.table, data)
        if signer is not None and plan.signature is not None:
            _write(staged.fd, plan.signature, msgspec.json.encode(BundleSignature(signer.sign(data).hex())))
        write = partial(_write_object, store, Transfer(), staged.fd)
        # Those with a seal without their digests, one by one: writes to one file wait for each other.
        unsealed = [each for each in plan.objects if each.size < HASHED_BELOW or not write(each, sealed=True)]
        for_each(lambda member, by_two: write(member, by_two=by_two), unsealed)
        _write_records(staged.fd, plan, chosen)
        staged.commit(target, mode=0o600, fsync=False)
    return CreateResult(
        count, len(plan.objects), len(plan.weights), len(entries) - count, len(wanted) - len(entries), plan.size
    )


def _usable(store: Store, key: str) -> Entry | None:
    """The entry with all its artifacts in place, or None."""
    try:
        entry = store.lookup(key)
        if entry is None or not entry.traces:
            return None
        for ref in references(entry):
            store.objects.path(ref)
    except StoreFault:
        return None
    return entry


def _choose_weights(chosen: _BundleContent, owner: WeightStore, names: Sequence[str]) -> None:
    by_revision: dict[str, set[str]] = {}
    for name in names:
        revision = owner.find(name)
        if revision is None:
            raise UsageError(f"there are no weights {name!r} in the store; `{to_type('weights ls')}` lists them")
        if not revision.owned:
            raise UsageError(
                f"the weights {name!r} are in place, not in the store: {to_type('weights add --own --replace')}"
            )
        by_revision.setdefault(revision.id, set()).add(revision.name)
    for revision_id, named in by_revision.items():
        contents = owner.contents(revision_id)
        chosen.weights[revision_id] = msgspec.json.encode(BundledWeights(tuple(sorted(named)), contents.record))
        chosen.objects |= {ref.digest: ref.size for ref in contents.refs}


def _choose_entries(chosen: _BundleContent, entries: Sequence[Entry], max_size: int, signer: str) -> int:
    """Choose those that fit, the best first; how many."""

    def worth(entry: Entry) -> float:
        return max(trace.seconds for trace in entry.traces) / (1 + sum(ref.size for ref in references(entry)))

    table = chosen.table(signer)
    size = plan_bundle(table, len(msgspec.json.encode(table))).size
    for entry in sorted(entries, key=worth, reverse=True):
        new = {ref.digest: ref.size for ref in references(entry) if ref.digest not in chosen.objects}
        data = msgspec.json.encode(entry)
        more = sum(_stored_size(each, _OBJECT_ROW) for each in new.values()) + _stored_size(len(data), _RECORD_ROW)
        if max_size and size + more > max_size:
            continue
        size += more
        chosen.objects |= new
        chosen.entries[entry.key] = data
    return len(chosen.entries)


#: Bytes of a row of the table, with the longest size: ``["<64>",9223372036854775807],`` and another ``"<64>",``.
_OBJECT_ROW = 90
_RECORD_ROW = 157


def _stored_size(nbytes: int, row: int) -> int:
    """What a file of so many bytes takes, at most; the rows of the table fill its last block now and then."""
    return BLOCK + nbytes + padding(nbytes) + row


def _records(data: Mapping[str, bytes]) -> tuple[BundledRecord, ...]:
    return tuple(BundledRecord(name, digest_bytes(each), len(each)) for name, each in sorted(data.items()))


def _write_records(fd: int, plan: BundlePlan, chosen: _BundleContent) -> None:
    for members, contents in ((plan.entries, chosen.entries), (plan.weights, chosen.weights)):
        for member, (_, data) in zip(members, sorted(contents.items()), strict=True):
            _write(fd, member, data)
    write_at(fd, END, plan.size - len(END))


def _write(fd: int, member: BundleMember, data: bytes) -> None:
    write_at(fd, header(member.name, member.size) + data + bytes(padding(member.size)), member.offset - BLOCK)


def _write_object(
    store: Store, transfer: Transfer, fd: int, member: BundleMember, *, sealed: bool = False, by_two: bool = False
) -> bool:
    """Copy an object; whether it was. Raises StoreFault where it is not what its name says.

    sealed: only if it has the seal of the store. That is believed here, as it is of a hit, so its bytes are not hashed:
    whoever adds the bundle does that.
    """
    ref = ArtifactRef(member.digest, member.size)
    with fsio.faults(f"reading object {ref.digest}"):
        source = fsio.open_read(store.objects.place(ref.digest), os.O_NOFOLLOW)
    with fsio.closing(source):
        state, status = fsio.identity(source), os.fstat(source)
        if sealed and not (status.st_size == ref.size and is_sealed(status)):
            return False
        write_at(fd, header(member.name, member.size), member.offset - BLOCK)
        try:
            if sealed:
                transfer.plain(source, 0, ref.size, fd, member.offset)
                is_whole = fsio.identity(source) == state
            else:
                is_whole = transfer.copy(source, 0, ref.size, fd, member.offset, by_two=by_two) == ref.digest
        except EOFError as error:
            raise StoreFault(Fault.ARTIFACT_CORRUPT, f"object {ref.digest} was cut while it was read") from error
    write_at(fd, bytes(padding(ref.size)), member.offset + ref.size)
    if not is_whole:
        words = store.objects.verify(ref)
        raise StoreFault(Fault.ARTIFACT_CORRUPT, f"object {ref.digest}: {words or 'it was changed meanwhile'}")
    return True
