"""What a bundle is, byte by byte.

An uncompressed tar (POSIX.1-1988 ustar headers, sizes from 8 GiB on in base 256 as GNU tar writes them), so that any
tar unpacks it, of these files in this order:

    cachec.json              the table of contents, a BundleTable
    signature.json           a BundleSignature, where the table names a signer
    objects/<64 hex>         artifacts and tensors, in the order of their digests
    entries/<64 hex>.json    an Entry each (model.py), in the order of their keys
    weights/<64 hex>.json    a BundledWeights each, in the order of their revisions

and two blocks of zeros. The table says the digest and the size of each file, so all else follows from it: every header,
every padding and the length of the bundle. A reader compares them with what it would have written, and believes
nothing that a header says. All JSON is as msgspec encodes it, without a choice. So one content has one bundle.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec

from cachec.errors import CachecError
from cachec.model import Digest
from cachec.remote.keys import NAME
from cachec.weights.library.revisions import RevisionRecord

FORMAT = "cachec-bundle"
VERSION = 1

BLOCK = tarfile.BLOCKSIZE
END = b"\0" * (2 * BLOCK)
TABLE = "cachec.json"
SIGNATURE = "signature.json"
#: Bytes of the table: of 200,000 objects. It is read at once.
TABLE_MAX = 1 << 24
#: Bytes of one entry, far above any that is written; and of the record of one revision.
ENTRY_MAX = 1 << 24
WEIGHTS_MAX = 1 << 24

_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class BundleError(CachecError):
    """A bundle is damaged, of another version, not signed as it should be, or none; nothing of it was stored."""


class BundledObject(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An object of the store."""

    digest: Digest
    size: _Size


class BundledRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The JSON of an entry, by its key, or of weights, by their revision."""

    name: Digest
    digest: Digest
    size: _Size


class BundleTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a bundle holds; each tuple in order, and nothing twice. signer: a public key, or empty."""

    format: str
    version: int
    objects: tuple[BundledObject, ...]
    entries: tuple[BundledRecord, ...]
    weights: tuple[BundledRecord, ...]
    signer: Annotated[str, msgspec.Meta(pattern=f"^({NAME}:[A-Za-z0-9_=-]{{44}})?$")] = ""


class BundleSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Ed25519 signature of the bytes of the table, in hexadecimal."""

    ed25519: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{128}$")]


class BundledWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A revision of weights, and the names that stand for it, in order."""

    names: tuple[str, ...]
    record: RevisionRecord


class BundleMember(NamedTuple):
    """A file of a bundle. offset: of its content."""

    name: str
    digest: str
    size: int
    offset: int

    @property
    def end(self) -> int:
        """Where the next header, or the end, is."""
        return self.offset + self.size + padding(self.size)


class BundlePlan(NamedTuple):
    """Where everything of a bundle is. size: of the whole file."""

    table: BundleMember
    signature: BundleMember | None
    objects: tuple[BundleMember, ...]
    entries: tuple[BundleMember, ...]
    weights: tuple[BundleMember, ...]
    size: int

    def members(self) -> Iterator[BundleMember]:
        """All files, in order."""
        yield self.table
        if self.signature is not None:
            yield self.signature
        yield from (*self.objects, *self.entries, *self.weights)


#: What of every header comes after the name: of a plain file, mode 0444, user and group 0, of 1970. As tarfile has it.
_FIELDS = tarfile.TarInfo("").tobuf(tarfile.GNU_FORMAT)[100:].replace(b"0000644", b"0000444")

#: The signature is of one size, whatever it says.
SIGNATURE_SIZE = len(msgspec.json.encode(BundleSignature("0" * 128)))


def plan_bundle(table: BundleTable, table_size: int) -> BundlePlan:
    """Where everything of a bundle with this table is."""
    at = 0

    def member(name: str, digest: str, size: int) -> BundleMember:
        nonlocal at
        made = BundleMember(name, digest, size, at + BLOCK)
        at = made.end
        return made

    head = member(TABLE, "", table_size)
    signature = member(SIGNATURE, "", SIGNATURE_SIZE) if table.signer else None
    objects = tuple(member(f"objects/{each.digest}", each.digest, each.size) for each in table.objects)
    entries = tuple(member(f"entries/{each.name}.json", each.digest, each.size) for each in table.entries)
    weights = tuple(member(f"weights/{each.name}.json", each.digest, each.size) for each in table.weights)
    return BundlePlan(head, signature, objects, entries, weights, at + len(END))


def header(name: str, nbytes: int) -> bytes:
    """Return the header of a file with a name of at most 100 ASCII characters."""
    size = b"%011o\0" % nbytes if nbytes < 1 << 33 else b"\x80" + nbytes.to_bytes(11, "big")
    block = name.encode().ljust(100, b"\0") + _FIELDS[:24] + size + _FIELDS[36:48] + b" " * 8 + _FIELDS[56:]
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def padding(nbytes: int) -> int:
    """The zeros behind a file of so many bytes."""
    return -nbytes % BLOCK
