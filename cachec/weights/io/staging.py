"""Staged files: written under a temporary name in the target's folder, locked, and resumed after a kill.

    .<name>.partial-<pid>-<16 hex>
        0      the file, as far as it got
        size   slots of 32 bytes: slot 0 of the plan (which byte comes from where), one more for each unit of it

A unit is a run of small weights, or a piece of a large one. Its slot is zero until all of its bytes are written, then
the BLAKE3 of everything that has to be the same for those bytes to be written again: the boot of the machine, the plan,
the number of the unit, and where its bytes came from. Nothing is parsed: a slot that is not what would be computed now
counts for nothing, so a changed source or plan, a write that was cut, and bytes that somebody made up all start anew.
The slots are cut off before the file gets its name.

**Why bytes that a killed process wrote can be believed.** They are in the page cache, which outlives the process, not
the machine: hence the boot. Their slot was written after them, and is made zero before they are written again. Where
they came from is an owned weight by its digest, or a file in the state that it had before they were copied, when no
later write could leave that as it was (``FileDigests.trusts``, a read lease). Any other bytes (memory, slices that are
put together) get no mark, and are written again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from cachec.base import fsio
from cachec.base.hashing import FileDigests, Hasher
from cachec.base.mounts import TRACKED_FILESYSTEMS, Mounts
from cachec.errors import WeightsChanged
from cachec.weights.formats.base import Plan
from cachec.weights.io.copying import Copied, Copier, naming_full_disk, source_of
from cachec.weights.sources import Extent, OpenedFile
from cachec.weights.weight import Weight

_SLOT = 32
_NONE = bytes(_SLOT)
#: Bytes of a unit: what a kill may cost.
_UNIT = 64 << 20
_SUFFIX = re.compile(r"\d+-[0-9a-f]{16}")
_BOOT = "/proc/sys/kernel/random/boot_id"
#: Where slots behind the end of a file cost no zeros in between.
_SPARSE = TRACKED_FILESYSTEMS | {"tmpfs", "overlay", "overlay.open", "nfs", "nfs4"}


class StagedFile:
    """A file under a temporary name in its target's folder, locked until it is complete. A context manager."""

    def __init__(self, target: str, plan: Plan | None = None) -> None:
        """plan: what will be in it, for going on with what a killed process left."""
        self.target = target
        self.plan = plan
        folder, name = os.path.split(target)
        self._marks = None if plan is None else _Marks.of(plan, folder)
        self._slots: list[bytes] = []
        staging = None
        for path, fd in _find_abandoned(folder, f".{name}.partial-"):
            if staging is None and self._is_mine(fd):
                staging = fsio.Staging.adopt(path, fd)
            else:
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    os.unlink(path)
                os.close(fd)
        self.file = _make_file(folder, f".{name}.partial-") if staging is None else staging

    def _is_mine(self, fd: int) -> bool:
        """Whether an abandoned file is one of this plan; its slots are then known."""
        if self._marks is None or self.plan is None:
            return False
        slots = _read_slots(fd, self.plan.size, 1 + sum(_units(weight.nbytes) for weight, _ in self.plan.places))
        if not slots or slots[0] != self._marks.of_plan():
            return False
        self._slots = slots
        return True

    def write(self, copier: Copier) -> None:
        """Write all that the plan says, but for what is there. Raises OSError, WeightsChanged."""
        plan = self.plan
        if plan is None:
            raise ValueError("a file without a plan is written by who made it")
        with naming_full_disk(plan.path, "nothing is left of it: make room, and save again"):
            self.file.write(plan.head)
            if self._marks is not None:
                self._mark(0, self._marks.of_plan())
            number = 1
            for batch in _batches(plan.places):
                if len(batch) == 1 and batch[0][0].nbytes > _UNIT:
                    number = self._write_large(*batch[0], number, copier)
                else:
                    self._write_unit(number, [_Part(weight, offset) for weight, offset in batch], copier)
                    number += 1

    def _write_large(self, weight: Weight, offset: int, number: int, copier: Copier) -> int:
        """A weight in pieces, a unit each; in one go where its digest is known, which is of all of it."""
        end = number + _units(weight.nbytes)
        extent = weight.extent()
        if extent is None or extent.digest:
            for other in range(number + 1, min(end, len(self._slots))):
                self._mark(other, _NONE)  # of pieces that this overwrites
            self._write_unit(number, [_Part(weight, offset, extent)], copier)
            return end
        for begin in range(0, weight.nbytes, _UNIT):
            nbytes = min(_UNIT, weight.nbytes - begin)
            piece = msgspec.structs.replace(extent, offset=extent.offset + begin, nbytes=nbytes)
            self._write_unit(number, [_Part(weight, offset + begin, piece)], copier)
            number += 1
        return end

    def _write_unit(self, number: int, parts: Sequence[_Part], copier: Copier) -> None:
        marks = self._marks
        before = self._slots[number] if number < len(self._slots) else _NONE
        if marks is not None and before != _NONE:
            if before == marks.of_unit(number, (part.extent() for part in parts)):
                copier.skip(sum(part.nbytes for part in parts))
                return
            self._mark(number, _NONE)
        tokens = []
        for part in parts:
            source = part.source()
            token = None if marks is None else marks.trusted_token(source)  # noted before the bytes are copied
            if token is not None:
                tokens.append(token)
            _copy_part(part, source, self.file.fd, copier)
        if marks is not None and len(tokens) == len(parts):
            self._mark(number, marks.of_tokens(number, tokens))

    def _mark(self, number: int, slot: bytes) -> None:
        if self.plan is not None:
            os.pwrite(self.file.fd, slot, self.plan.size + number * _SLOT)

    def publish(self, fsync: bool) -> None:
        """Give it its name, with the mode of what it replaces, else with that of any new file."""
        if self.plan is not None:
            os.ftruncate(self.file.fd, self.plan.size)
        self.file.replace(self.target, fsync=fsync)

    def __enter__(self) -> StagedFile:
        return self

    def __exit__(self, *unused: object) -> None:
        self.file.discard()


# --- units and their marks


class _Part(NamedTuple):
    """Bytes of a weight, and where they go."""

    weight: Weight
    offset: int
    #: The range of a file that they are; None for all bytes of it.
    piece: Extent | None = None

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes if self.piece is None else self.piece.nbytes

    def extent(self) -> Extent | None:
        return self.piece or self.weight.extent()

    def source(self) -> Copied:
        return self.piece or source_of(self.weight)


def _units(nbytes: int) -> int:
    """How many slots a weight may need: one for it alone, at most."""
    return max(1, -(-nbytes // _UNIT))


def _batches(places: Sequence[tuple[Weight, int]]) -> Iterator[list[tuple[Weight, int]]]:
    """Runs of weights of a unit together; a larger weight by itself."""
    batch: list[tuple[Weight, int]] = []
    remaining = _UNIT
    for place in places:
        if batch and place[0].nbytes > remaining:
            yield batch
            batch, remaining = [], _UNIT
        batch.append(place)
        remaining -= place[0].nbytes
    if batch:
        yield batch


class _Marks:
    """The slots of one plan on this boot of the machine."""

    def __init__(self, boot: str, plan: Plan) -> None:
        hasher = Hasher("export")
        hasher.part("boot", boot.encode())
        hasher.part("head", plan.head)
        hasher.part("places", repr([(weight.nbytes, offset) for weight, offset in plan.places]).encode())
        hasher.part("size", f"{plan.size}:{_UNIT}".encode())
        self._plan = hasher.digest().encode()
        self._digests = FileDigests()
        self._trusted: set[OpenedFile] = set()
        self._file: tuple[OpenedFile | None, str] = (None, "")

    @staticmethod
    def of(plan: Plan, folder: str) -> _Marks | None:
        """Return None if the file can't be resumed: slots would cost more than they save, or prove nothing."""
        try:
            with open(_BOOT, encoding="ascii") as file:
                boot = file.read().strip()
        except OSError:
            return None
        return _Marks(boot, plan) if boot and Mounts().kind(folder) in _SPARSE else None

    def of_plan(self) -> bytes:
        """Slot 0."""
        return self.of_tokens(0, [])

    def of_unit(self, number: int, extents: Iterable[Extent | None]) -> bytes | None:
        """The slot of a unit of these ranges, as they are now; None where some bytes can't have a mark."""
        tokens = []
        for extent in extents:
            token = None if extent is None else self.token(extent)
            if token is None:
                return None
            tokens.append(token)
        return self.of_tokens(number, tokens)

    def token(self, source: Extent) -> bytes | None:
        """What says where bytes come from; None for an artifact of unknown content, for its state says nothing."""
        if source.digest:
            return f"digest {source.digest} {source.nbytes}".encode()
        file, text = self._file
        if source.file is not file:  # thousands of weights have one
            file = source.file
            text = f"part {file.checksum}" if file.artifact else f"file {tuple(file.identity)}"
            self._file = file, text
        if file.artifact and not file.checksum:
            return None
        return f"{text} {source.offset} {source.nbytes}".encode()

    def trusted_token(self, source: Copied) -> bytes | None:
        """The same of what is copied next; None too where a write from now on could leave its file's state as it is."""
        if not isinstance(source, Extent) or not (source.file.artifact or self._is_trusted(source)):
            return None
        return self.token(source)

    def _is_trusted(self, source: Extent) -> bool:
        if source.file in self._trusted:
            return True
        if fsio.no_writer(source.fd) and self._digests.trusts(source.fd, source.file.identity):
            source.check()
            self._trusted.add(source.file)
            return True
        return False

    def of_tokens(self, number: int, tokens: Sequence[bytes]) -> bytes:
        """The slot of a unit of bytes from these places."""
        hasher = Hasher("export-unit")
        hasher.part("plan", self._plan)
        hasher.part("unit", str(number).encode())
        hasher.part("from", b"\n".join(tokens))
        return bytes.fromhex(hasher.digest())


def _copy_part(part: _Part, source: Copied, fd: int, copier: Copier) -> None:
    expected = source.digest if isinstance(source, Extent) else ""
    digest = copier.copy(source, fd, part.offset, digest=bool(expected))
    if digest is not None and digest.result() != expected:
        raise WeightsChanged(
            f"weight {part.weight.name!r}: its bytes expected the digest {expected}, found {digest.result()}; "
            "add the weights again"
        )


# --- the files


def _make_file(folder: str, prefix: str) -> fsio.Staging:
    """A new file, locked."""
    while True:
        file = fsio.Staging(folder, prefix)
        fcntl.flock(file.fd, fcntl.LOCK_EX)
        if os.fstat(file.fd).st_nlink:
            return file
        file.discard()  # taken for abandoned between its making and its lock


def _find_abandoned(folder: str, prefix: str) -> Iterator[tuple[str, int]]:
    """Return the temporary files of killed processes, by path and descriptor, with a lock that no other process has."""
    with os.scandir(folder) as entries:
        paths = [
            entry.path
            for entry in entries
            if entry.name.startswith(prefix) and _SUFFIX.fullmatch(entry.name, len(prefix))
        ]
    for path in paths:
        try:
            fd = _open_file(path)
        except OSError:
            continue  # removed, or another user's
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            state = os.fstat(fd)
            there = os.lstat(path)
        except (BlockingIOError, FileNotFoundError):
            os.close(fd)
            continue
        if (state.st_dev, state.st_ino) != (there.st_dev, there.st_ino):  # it has its final name now
            os.close(fd)
            continue
        yield path, fd


def _open_file(path: str) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, os.O_RDWR | flags)
    except PermissionError:  # killed when it had its mode and not yet its name
        return os.open(path, os.O_RDONLY | flags)


def _read_slots(fd: int, begin: int, number: int) -> list[bytes]:
    """Return the slots in a file of this user without a second name; no slots for any other file."""
    state = os.fstat(fd)
    mine = stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and state.st_nlink == 1
    if not mine or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
        return []
    data = os.pread(fd, number * _SLOT, begin)
    return [data[at : at + _SLOT] for at in range(0, len(data) - _SLOT + 1, _SLOT)]
