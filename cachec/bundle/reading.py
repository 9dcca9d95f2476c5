"""Reading of bundles: every part is checked before its use, and this module stores nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import TracebackType
from typing import TypeVar

import msgspec

from cachec.base import fsio
from cachec.base.hashing import digest_bytes
from cachec.bundle.format import (
    BLOCK,
    END,
    ENTRY_MAX,
    FORMAT,
    SIGNATURE_SIZE,
    TABLE,
    TABLE_MAX,
    VERSION,
    WEIGHTS_MAX,
    BundledRecord,
    BundledWeights,
    BundleError,
    BundleMember,
    BundlePlan,
    BundleSignature,
    BundleTable,
    header,
    padding,
    plan_bundle,
)
from cachec.bundle.transfer import Transfer
from cachec.errors import ConfigError, UsageError, WeightError
from cachec.model import RECORD_VERSION, Entry, from_json
from cachec.remote import keys
from cachec.store.import_checks import why_other_version, why_unfit
from cachec.store.store import references
from cachec.weights.library.revisions import RevisionContents, check_name, checked_record

T = TypeVar("T")


class BundleReader:
    """A bundle whose structure is whole: its table, all headers, entries and records of weights. Not yet its objects.

    A context manager. signer: who has signed it, as a public key; empty where nobody has. is_checked: whether that was
    looked at, which needs a package.
    """

    def __init__(self, path: str | os.PathLike[str], trusted: tuple[str, ...] = ()) -> None:
        """trusted: public keys, one of which has to have signed it; none: nobody has to.

        Raises BundleError, OSError, and ConfigError where a signature has to be looked at and can't be.
        """
        self.path = os.fspath(path)
        self._transfer = Transfer()
        self.fd = fsio.open_read(self.path, os.O_NONBLOCK)
        try:
            self._state = os.fstat(self.fd)
            if not stat.S_ISREG(self._state.st_mode):
                raise self.refusal("it is no regular file")
            self.table, self.plan = self._read_table(trusted)
            self._check_frame()
            self.entries = tuple(self._entry(row, member) for row, member in self._rows("entries"))
            self.weights = {row.name: self._weights(row, member) for row, member in self._rows("weights")}
            self._check_references()
        except BaseException:
            os.close(self.fd)
            raise

    def refusal(self, why: str) -> BundleError:
        """The error that says why it is refused."""
        return BundleError(f"{self.path} is refused: {why}; nothing of it is used: get it, or make it, again")

    def contents(self, member: BundleMember) -> bytes:
        """The content of a small file."""
        return self._take(member.offset, member.size)

    def check_object(self, member: BundleMember) -> None:
        """Raise BundleError unless an object is what its name says. Safe among threads."""
        self._check(member, lambda: self._transfer.digest(self.fd, member.offset, member.size))

    def copy_object(self, member: BundleMember, target: int, *, by_two: bool) -> None:
        """The same of what is written to the open file ``target``, on the way. Raises OSError too."""
        self._check(member, lambda: self._transfer.copy(self.fd, member.offset, member.size, target, 0, by_two=by_two))

    def _check(self, member: BundleMember, digest: Callable[[], str]) -> None:
        try:
            found = digest()
        except EOFError:
            raise self.refusal("it was cut meanwhile") from None
        if found != member.digest:
            raise self.refusal(f"object {member.digest[:12]} has other content than its name says")

    def _read_table(self, trusted: tuple[str, ...]) -> tuple[BundleTable, BundlePlan]:
        first = self._take(0, BLOCK)
        try:
            size = int(first[124:135].decode("ascii"), 8)
        except ValueError:
            raise self.refusal("it is no bundle of cachec") from None
        if not 0 < size <= TABLE_MAX or first != header(TABLE, size):
            raise self.refusal("it is no bundle of cachec")
        data = self._take(BLOCK, size)
        made = self._decode(data, _TableFormat, "its table")
        if (made.format, made.version) != (FORMAT, VERSION):
            raise self.refusal(f"it is {made.format!r} version {made.version}; this reads {FORMAT} version {VERSION}")
        table = self._decode(data, BundleTable, "its table")
        for names in (
            [each.digest for each in table.objects],
            [each.name for each in table.entries],
            [each.name for each in table.weights],
        ):
            if any(first >= second for first, second in pairwise(names)):
                raise self.refusal("its table is not in order, or has something twice")
        if msgspec.json.encode(table) != data:
            raise self.refusal("its table is not written as it would be")
        plan = plan_bundle(table, size)
        if self._state.st_size != plan.size:
            raise self.refusal(f"it has {self._state.st_size} bytes, and {plan.size} by its table")
        self._check_signature(table, plan, data, trusted)
        return table, plan

    def _check_signature(self, table: BundleTable, plan: BundlePlan, data: bytes, trusted: tuple[str, ...]) -> None:
        self.is_checked = False
        if trusted and table.signer not in trusted:
            signer_text = f"by {table.signer}" if table.signer else "by nobody"
            raise self.refusal(f"it is signed {signer_text}, not by who has to")
        if plan.signature is None:
            return
        given = self._take(plan.signature.offset, SIGNATURE_SIZE)
        signature = self._decode(given, BundleSignature, "its signature")
        try:
            _, public = keys.read(table.signer, keys.SIZE, "its signer")
        except ConfigError as error:
            raise self.refusal(str(error)) from None
        if trusted or keys.has_package():
            if not keys.has_signed(public, bytes.fromhex(signature.ed25519), data):
                raise self.refusal(f"its signature is not by the key {table.signer}")
            self.is_checked = True

    def _check_frame(self) -> None:
        """All headers and paddings, and the end."""
        for member in self.plan.members():
            if self._take(member.offset - BLOCK, BLOCK) != header(member.name, member.size):
                raise self.refusal(f"the header of {member.name} is not what it should be")
            if self._take(member.offset + member.size, padding(member.size)).strip(b"\0"):
                raise self.refusal(f"the padding of {member.name} is not zeros")
        if self._take(self.plan.size - len(END), len(END)) != END:
            raise self.refusal("its end is not zeros")

    def _rows(self, kind: str) -> Iterator[tuple[BundledRecord, BundleMember]]:
        """The rows of the table with where they are; what they lead to is right."""
        limit = {"entries": ENTRY_MAX, "weights": WEIGHTS_MAX}[kind]
        for row, member in zip(getattr(self.table, kind), getattr(self.plan, kind), strict=True):
            if row.size > limit:
                raise self.refusal(f"{member.name} has {row.size} bytes; at most {limit} are read")
            yield row, member

    def _read(self, member: BundleMember, kind: type[T]) -> T:
        data = self.contents(member)
        if digest_bytes(data) != member.digest:
            raise self.refusal(f"{member.name} has other content than the table says")
        return self._decode(data, kind, member.name)

    def _entry(self, row: BundledRecord, member: BundleMember) -> Entry:
        version = self._read(member, _RecordVersion).version  # first: an entry of another version may have another form
        if version != RECORD_VERSION:
            raise self.refusal(f"entry {row.name[:12]} {why_other_version(version)}")
        entry = self._read(member, Entry)
        if why := why_unfit(entry, row.name):
            raise self.refusal(f"entry {row.name[:12]} {why}")
        return entry

    def _weights(self, row: BundledRecord, member: BundleMember) -> tuple[tuple[str, ...], RevisionContents]:
        """The names of a revision, and what it holds."""
        held = self._read(member, BundledWeights)
        try:
            for name in held.names:
                check_name(name)
            contents = checked_record(member.name, held.record)
        except (UsageError, WeightError) as error:
            raise self.refusal(str(error)) from None
        if digest_bytes(msgspec.json.encode(held.record)) != row.name or held.record.placed or not held.names:
            raise self.refusal(f"{member.name} is not the record that its name says")
        return held.names, contents

    def _check_references(self) -> None:
        """Check that the needed objects are here with their sizes, and no others, and that each name is unique."""
        sizes = {each.digest: each.size for each in self.table.objects}
        needed = [(f"entry {entry.key[:12]}", ref) for entry in self.entries for ref in references(entry)]
        needed += [(f"weights {names[0]}", ref) for names, contents in self.weights.values() for ref in contents.refs]
        for what, ref in needed:
            if sizes.get(ref.digest) != ref.size:
                raise self.refusal(f"{what} needs object {ref.digest[:12]} of {ref.size} bytes, which is absent")
        if len({ref.digest for _, ref in needed}) != len(sizes):
            raise self.refusal("it has objects that nothing in it needs")
        names = [name for named, _ in self.weights.values() for name in named]
        if len(set(names)) != len(names):
            raise self.refusal("a name in it stands for several weights")

    def _decode(self, data: bytes, kind: type[T], what: str) -> T:
        return from_json(data, kind, self.refusal, f"{what} is malformed")

    def _take(self, offset: int, nbytes: int) -> bytes:
        if offset + nbytes > self._state.st_size:
            raise self.refusal("it is cut")
        try:
            return fsio.pread_exact(self.fd, offset, nbytes)
        except EOFError:
            raise self.refusal("it was cut meanwhile") from None

    def __enter__(self) -> BundleReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self.fd)


class _TableFormat(msgspec.Struct, frozen=True):
    """Which format a table says that it is of."""

    format: str
    version: int


class _RecordVersion(msgspec.Struct, frozen=True):
    """Which version a record says that it is of."""

    version: int
