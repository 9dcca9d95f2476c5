"""Adding a bundle to a store: first all of it is checked, then all of it is stored.

Objects that the store lacks are copied to its folder ``tmp`` and hashed on the way. Once each is what its name says,
they get their names, then the weights come, then the entries. A process that dies on the way leaves objects that
nothing refers to, at worst.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from cachec.base import fsio
from cachec.base.workers import in_threads
from cachec.bundle.format import BundleMember
from cachec.bundle.reading import BundleReader
from cachec.bundle.transfer import for_each
from cachec.errors import StoreFault
from cachec.model import ArtifactRef, Entry, Fault, Trace
from cachec.store.store import Store
from cachec.weights.library.stored_weights import WeightStore

#: Entries of one transaction: a hundred take a tenth of the time that each alone takes, and others write in between.
_AT_ONCE = 128


class AddResult(NamedTuple):
    """What a bundle has brought. objects: those that the store did not have. signer: as of the reader."""

    entries: int
    objects: int
    weights: int
    signer: str


class _StagedObject(NamedTuple):
    """An object that is in a file of the store, but not yet under its name."""

    ref: ArtifactRef
    path: str


def add(
    store: Store, path: str | os.PathLike[str], *, trusted: tuple[str, ...] = (), replace: bool = False
) -> AddResult:
    """Add what is in a bundle to the store. A run that the store knows stays as it is there.

    trusted: as of the reader. replace: let names of weights that are taken stand for those of the bundle. Raises
    BundleError for a bundle that is not whole, FileNotFoundError where there is none, UsageError for a name that is
    taken, and StoreFault where the store can't be written.
    """
    with BundleReader(path, trusted) as reader:
        owner = WeightStore(store)
        if not replace:
            for revision, (names, _) in reader.weights.items():
                owner.check_free(names, revision)
        staged = _stage_objects(store, reader)
        try:
            _publish(store, staged)
        finally:
            _discard(staged)
        for names, contents in reader.weights.values():
            owner.adopt(contents, names, source=os.path.abspath(path))
        for first in range(0, len(reader.entries), _AT_ONCE):
            some = reader.entries[first : first + _AT_ONCE]
            store.index.atomically(partial(_publish_entries, store, some))
        return AddResult(len(reader.entries), len(staged), len(reader.weights), reader.table.signer)


def _stage_objects(store: Store, reader: BundleReader) -> list[_StagedObject]:
    """The objects that the store lacks, as files of its own, each what it should be. Those that it has are checked."""
    staged: list[_StagedObject] = []
    lacking = {each for each in reader.plan.objects if not store.objects.has(ArtifactRef(each.digest, each.size))}
    _check_free_space(store, sum(member.size for member in lacking))

    def take(member: BundleMember, by_two: bool) -> None:
        if member in lacking:
            staged.append(_copy_object(store, reader, member, by_two))
        else:
            reader.check_object(member)

    try:
        for_each(take, reader.plan.objects)
    except BaseException:
        _discard(staged)
        raise
    return staged


def _check_free_space(store: Store, nbytes: int) -> None:
    """Raise StoreFault where so many bytes are not free: a file of holes may say that it has more than any disk."""
    place = os.path.abspath(store.folder)
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    with fsio.faults(f"looking at {place}"):
        free = shutil.disk_usage(place).free
    if nbytes > free:
        raise StoreFault(Fault.STORE_FULL, f"the bundle needs {nbytes} bytes in {store.folder}; {free} are free")


def _copy_object(store: Store, reader: BundleReader, member: BundleMember, by_two: bool) -> _StagedObject:
    """A file with the content of an object. Raises BundleError, StoreFault."""
    with fsio.faults(f"storing object {member.digest}"), store.objects.new_staging() as file:
        reader.copy_object(member, file.fd, by_two=by_two)
        return _StagedObject(ArtifactRef(member.digest, member.size), file.release())


def _publish(store: Store, staged: Sequence[_StagedObject]) -> None:
    """Give the files their names.

    All are leased before the first is there, so that no ``gc`` can take one for forgotten; one by one that would take
    as long as the rest of it.
    """
    store.leases.take((file.ref.digest for file in staged), strict=True)
    in_threads(partial(_publish_one, store), staged, threads=2)


def _publish_one(store: Store, file: _StagedObject) -> None:
    with fsio.faults(f"storing object {file.ref.digest}"):
        taken = fsio.Staging.adopt(file.path, os.open(file.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
    with taken:
        store.objects.publish(taken, file.ref)


def _discard(staged: list[_StagedObject]) -> None:
    for file in staged:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file.path)


def _publish_entries(store: Store, entries: Sequence[Entry]) -> None:
    for entry in entries:
        known = {trace.reads for trace in _present(store, entry.key)}
        for trace in reversed(entry.traces):
            if trace.reads not in known:
                store.publish(entry.key, entry.stage, entry.tags, entry.parts, trace)


def _present(store: Store, key: str) -> tuple[Trace, ...]:
    try:
        entry = store.lookup(key)
    except StoreFault:
        return ()  # a damaged row, which publishing replaces
    return () if entry is None else entry.traces
