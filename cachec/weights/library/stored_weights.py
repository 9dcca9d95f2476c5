"""The store's own weights: each tensor an object of the store, and named revisions that say which belong together.

    $CACHEC_DIR/objects/ab/<64 hex>             the bytes of one tensor, as of any artifact; see ``store/objects.py``
                weights/revisions/, names/      see ``revisions.py``

What is equal is there once, whether weights or results of stages have it. Owned means copied (or cloned by the file
system); a hard link would let whoever has the other name write into it.

**What stays.** ``gc`` keeps what a record names. An addition leases what it finds and stores, until its record names
it; an open set leases its revision. The kernel drops the leases of who is killed.

**After a kill**, what an ``add`` had published is there and is not copied again; its one partial file, and tensors that
no revision names, go with a later ``gc``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cachec.base import fsio
from cachec.base.display_text import argument_hint
from cachec.errors import CheckpointError, StoreFault, UsageError, WeightError, WeightsChanged
from cachec.model import Digest, Fault, WeightSpec
from cachec.store.leases import LeasedArtifacts
from cachec.store.objects import Objects
from cachec.store.store import Store
from cachec.weights.io.copying import Copier, Progress, naming_full_disk
from cachec.weights.library.checksums import Damage, WeightPlace, verify_files
from cachec.weights.library.intake import Intake
from cachec.weights.library.revisions import (
    VERSION,
    OwnedTensor,
    PlacedFile,
    PlacedTensor,
    Pointer,
    RevisionContents,
    RevisionRecord,
    Revisions,
    Swept,
    check_name,
)
from cachec.weights.library.source import OwnedSource
from cachec.weights.sets import WeightSet
from cachec.weights.sources import FileSource, OpenedFile

_DIGITS = re.compile(r"[0-9a-f]{4,64}")


class Revision:
    """Named weights of the store. The description of each weight is read when it is asked for.

    id: 64 hexadecimal characters, equal for equal weights. created: Unix time in seconds. source: where they came from.
    owned: whether the store has the bytes, or knows where in the user's files they are.
    """

    def __init__(self, pointer: Pointer, load: Callable[[], RevisionContents]) -> None:
        self.name = pointer.name
        self.id = pointer.revision
        self.created = pointer.created
        self.source = pointer.source
        self.owned = pointer.owned
        self.count = pointer.count
        self.nbytes = pointer.nbytes
        self._load = load

    @property
    def specs(self) -> Mapping[str, WeightSpec]:
        """The description of each weight, by name. Raises WeightError where the record is damaged."""
        return self._load().layout.specs

    @property
    def digests(self) -> Mapping[str, str]:
        """The digest of each weight, by name; empty for weights in place."""
        return self._load().by_name

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the user's files, for weights in place."""
        return tuple(file.path for file in self._load().record.files)

    @property
    def checksums(self) -> int:
        """For weights in place: how many of the files have a checksum that their checkpoint states."""
        return sum(bool(file.checksum) for file in self._load().record.files)

    def __repr__(self) -> str:
        return f"Revision({self.name!r}, {self.id[:16]}, {self.count} weights, {self.nbytes} bytes)"


class _Only(NamedTuple):
    """A name that is taken: only the same weights may be added under it."""

    name: str
    contents: RevisionContents

    def check_digest(self, name: str, digest: str) -> None:
        """Raise UsageError unless the weight ``name`` there has this digest."""
        self.check(digest == self.contents.by_name.get(name))

    def check(self, same: bool) -> None:
        """Raise UsageError unless they are the same."""
        if not same:
            raise UsageError(
                f"{self.name!r} is the name of other weights; remove it, choose another name, or "
                f"{argument_hint('pass replace=True', 'say --replace')}"
            )


class WeightStore:
    """The weights of a store. Objects of this class share nothing but its folder; any number may be used at once."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        """store: has the bytes; names and records are in its folder ``weights``, which is made when first written."""
        self.folder = store.folder / "weights"
        self.objects = store.objects
        self._clock = clock
        self._revisions = Revisions(self.folder, self.objects.tmp, fsync=self.objects.fsync)

    # --- adding

    def add(
        self,
        weights: WeightSet,
        name: str,
        *,
        own: bool = True,
        source: str = "",
        replace: bool = False,
        progress: Progress | None = None,
    ) -> Revision:
        """Keep these weights under ``name``.

        own: copy the bytes of each tensor that is not there yet; otherwise only note where in the user's files they
        are, and in which state those are. source: text for people. replace: let a name that is taken stand for these
        from now on. progress: called with bytes done and bytes in all; what is there already counts as done.

        Can be repeated after a kill or a full disk: tensors that were published are not copied again. Raises UsageError
        (name taken or malformed; weights in memory with own=False), OSError or StoreFault (disk full), WeightsChanged.
        """
        check_name(name)
        objects = self.objects.leasing()
        try:
            before = self._revisions.pointer(name)
            only = None if before is None or replace else _Only(name, self._revisions.contents(before.revision))
            if only is not None:
                only.check(weights.spec_digest == only.contents.layout.spec_digest)
            record = self._copy_weights(objects, weights, progress, only) if own else self._in_place(weights)
            revision = self._revisions.add(record, objects.leases)
            if before is not None and before.revision == revision:
                return self._revision(before)
            if only is not None:
                only.check(False)
            pointer = Pointer(VERSION, name, revision, self._clock(), source, own, len(weights), weights.nbytes)
            self._revisions.point(pointer)
        finally:
            objects.release()  # from here on the record keeps them
        return self._revision(pointer)

    def _copy_weights(
        self, objects: Objects, weights: WeightSet, progress: Progress | None, only: _Only | None
    ) -> RevisionRecord:
        with Copier(progress, weights.nbytes) as copier:
            intake = Intake(objects, copier, only.check_digest if only is not None else None)
            with naming_full_disk(self.folder.parent, "what is copied so far stays: make room, and add the same again"):
                owned = tuple(OwnedTensor(weight.spec, intake.own(weight)) for weight in weights.values())
        return RevisionRecord(VERSION, owned=owned)

    def _in_place(self, weights: WeightSet) -> RevisionRecord:
        files: dict[OpenedFile, int] = {}
        placed: list[PlacedTensor] = []
        for name, weight in weights.items():
            extent = weight.extent()
            if extent is None:
                raise UsageError(f"weight {name!r} is in memory and has no file to stay in; add it with own=True")
            if extent.file.artifact:
                raise UsageError(
                    f"weight {name!r} is a file of a store, which may remove it; add it with own=True, which shares it"
                )
            placed.append(PlacedTensor(weight.spec, files.setdefault(extent.file, len(files)), extent.offset))
        return RevisionRecord(VERSION, placed=tuple(placed), files=tuple(map(_placed_file, files)))

    def check_free(self, names: Sequence[str], revision: str) -> None:
        """Raise UsageError if one of these names belongs to another revision."""
        for name in names:
            pointer = self._revisions.pointer(name)
            if pointer is not None and pointer.revision != revision:
                way = argument_hint("pass replace=True", "say --replace")
                raise UsageError(f"{name!r} is the name of other weights; remove it, or {way}")

    def contents(self, revision: str) -> RevisionContents:
        """What a revision consists of. Raises WeightError."""
        return self._revisions.contents(revision)

    def adopt(self, contents: RevisionContents, names: Sequence[str], source: str) -> None:
        """Set these names to weights with their bytes in objects of the store. source: a text for display.

        Raises StoreFault where one of the objects is not there, OSError.
        """
        objects = self.objects.leasing()
        try:
            for ref in contents.refs:
                if not objects.has(ref):
                    raise StoreFault(Fault.ARTIFACT_MISSING, f"object {ref.digest} ({ref.size} bytes) is gone")
            with fsio.faults(f"writing in {self.folder}"):
                revision = self._revisions.add(contents.record, objects.leases)
                count, nbytes = len(contents.record.owned), sum(each.spec.nbytes for each in contents.record.owned)
                for name in names:
                    before = self._revisions.pointer(name)
                    if before is None or before.revision != revision:
                        now = self._clock()
                        self._revisions.point(Pointer(VERSION, name, revision, now, source, True, count, nbytes))
        finally:
            objects.release()

    # --- using

    def open(self, name: str) -> WeightSet:
        """The weights of a name, or of a revision by its first digits. No file of weights is opened before it is used.

        The set keeps the revision from being swept until it is released and collected. Raises WeightError (unknown, or
        damaged), WeightsChanged (a file in place is not what was added).
        """
        revision = self._revisions.resolve(name)
        objects = self.objects.leasing()
        self._revisions.lease(revision, objects.leases)
        contents = self._revisions.contents(revision)
        if contents.record.files:  # the store owns no object of it
            return WeightSet(contents.layout, FileSource(tuple(map(_reopen_file, contents.record.files))))
        return WeightSet(contents.layout, OwnedSource(objects, revision, contents.refs))

    def find(self, text: str) -> Revision | None:
        """Return the revision of a name, or of the first digits of a revision (4 at least); None for another text.

        Raises WeightError for what begins several, or is damaged.
        """
        known = self.revisions()
        named = next((each for each in known if each.name == text), None)
        if named is not None or _DIGITS.fullmatch(text) is None:
            return named
        begun = {each.id: each for each in known if each.id.startswith(text)}
        if len(begun) > 1:
            listed = ", ".join(f"{each.id[:12]} ({each.name})" for each in list(begun.values())[:8])
            raise WeightError(f"{text} is the beginning of {len(begun)} revisions: {listed}; give more digits")
        return next(iter(begun.values()), None)

    def revisions(self) -> list[Revision]:
        """Everything that has a name, sorted by it."""
        return [self._revision(pointer) for pointer in self._revisions.pointers()]

    def verify(self, name: str, progress: Progress | None = None) -> tuple[Damage, ...]:
        """Hash every object of a revision. Of weights in place: look whether the files are as they were added, and
        hash those of which the checkpoint states a checksum.

        A damaged object is removed, so that its use is refused, and the next ``add`` writes it again.
        """
        revision = self._revisions.resolve(name)
        objects = self.objects.leasing()
        self._revisions.lease(revision, objects.leases)
        try:
            contents = self._revisions.contents(revision)
            if contents.record.files:
                return _changed_files(contents, progress)
            return tuple(self._damages(contents, progress))
        finally:
            objects.release()

    def _damages(self, contents: RevisionContents, progress: Progress | None) -> Iterator[Damage]:
        total, done = sum(ref.size for ref in contents.refs), 0
        for ref in contents.refs:
            detail = self.objects.verify(ref)
            if detail:
                yield Damage(self.objects.place(ref.digest), _users(contents, ref.digest), detail)
            done += ref.size
            if progress is not None:
                progress(done, total)

    # --- removing

    def remove(self, name: str) -> None:
        """Remove a name; the next ``gc`` removes unused objects. Raises WeightError for an unknown name."""
        check_name(name)
        self._revisions.unpoint(name)

    def sweep(self, leased: LeasedArtifacts) -> Swept:
        """For ``gc``: remove revisions that no name has and no process uses. Raises WeightError, OSError."""
        return self._revisions.sweep(leased)

    def list_needed(self, on_damaged: Callable[[str], None]) -> frozenset[Digest]:
        """For ``gc``: everything that revisions may name. on_damaged: called for a record that may have named more.

        Raises StoreFault.
        """
        with fsio.faults(f"reading {self._revisions.records}"):
            return self._revisions.list_needed(on_damaged)

    def _revision(self, pointer: Pointer) -> Revision:
        return Revision(pointer, lambda: self._revisions.contents(pointer.revision))


def _users(contents: RevisionContents, digest: str) -> tuple[str, ...]:
    return tuple(name for name, leased in contents.by_name.items() if leased == digest)


def _placed_file(file: OpenedFile) -> PlacedFile:
    state = file.identity
    return PlacedFile(
        file.path,
        state.ino,
        state.size,
        state.mtime_ns,
        state.ctime_ns,
        file.header_nbytes,
        file.header_digest,
        file.checksum,
    )


def _state_of(file: PlacedFile) -> tuple[int, int, int, int]:
    return file.ino, file.size, file.mtime_ns, file.ctime_ns


def _reopen_file(file: PlacedFile) -> OpenedFile:
    """A file of the user's, if it is still as it was added. Raises WeightsChanged."""
    try:
        identity = fsio.identity(file.path)
    except OSError as error:
        raise WeightsChanged(f"{file.path}: expected as it was added, found none: {error.strerror}") from error
    if identity[1:] != _state_of(file):
        raise WeightsChanged(f"{file.path}: changed after its weights were added in place; add them again")
    return OpenedFile(file.path, identity, file.header_nbytes, file.header_digest, checksum=file.checksum)


def _changed_files(contents: RevisionContents, progress: Progress | None) -> tuple[Damage, ...]:
    """The user's files that are not as they were added, or do not have the checksums that their checkpoint states."""

    def names(number: int) -> tuple[str, ...]:
        return tuple(placed.spec.name for placed in contents.record.placed if placed.file == number)

    damages, same = [], []
    moved: dict[int, int] = {}
    for number, file in enumerate(contents.record.files):
        try:
            same.append(_reopen_file(file))
            moved[number] = len(moved)
        except (WeightsChanged, CheckpointError) as error:
            damages.append(Damage(file.path, names(number), str(error)))
    placed = [
        WeightPlace(each.spec.name, moved[each.file], each.offset, each.spec.nbytes)
        for each in contents.record.placed
        if each.file in moved
    ]
    return (*damages, *verify_files(same, placed, progress).damages)


__all__ = ["Damage", "Revision", "WeightError", "WeightStore"]
