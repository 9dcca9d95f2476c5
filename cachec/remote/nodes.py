"""A row of a remote: one node of the trie of what runs read (trie.py).

    bytes 0-15    ``cachec remote 2`` and a newline
    bytes 16-47   BLAKE3-256 of these and of all that follows
    bytes 48-49   u16 little-endian: length of the signature; then that (trust.py), and the node as JSON (``TrieNode``)

A node repeats its name, which hashes namespace, key and all reads on the way to it: a row that was copied to another
place is refused. The digest is against damage, as a small result lies in the row; signatures are against writers.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import msgspec

from cachec.base.hashing import Hasher, digest_bytes
from cachec.errors import StoreFault
from cachec.model import RECORD_VERSION, ArtifactRef, Digest, Entry, Fault, from_json
from cachec.remote.engines.base import MAX_ROW
from cachec.remote.trust import Trust
from cachec.store.import_checks import why_no_read, why_unfit
from cachec.store.store import products

VERSION = 2
_MAGIC = b"cachec remote 2\n"
_DIGEST = 32
_LENGTH = struct.Struct("<H")

#: The limit for the names that one node requests.
_MAX_READS = 10_000

#: The limit for all compressed small artifacts in a leaf, in bytes.
INLINE_BYTES = 1 << 17

#: Bytes of one artifact that is tried.
INLINE_ONE = 1 << 20

#: Kind, where and name of a read.
Name = tuple[str, str, str]


class TrieNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node: an inner node with the reads that select the next node, or a leaf with the entry of one run."""

    version: int
    #: The name of the node itself.
    name: Digest
    requested_reads: tuple[Name, ...] = msgspec.field(default=(), name="look")
    entry: Entry | None = None
    #: Of the artifacts of a leaf, by digest.
    sha256: dict[Digest, Digest] = {}
    #: Those that are small, compressed by zlib.
    inline: dict[Digest, bytes] = {}


def root_name(namespace: str, key: Digest) -> Digest:
    """The name of the node where the walk for a key begins."""
    hasher = Hasher("remote-root")
    hasher.part("version", str(VERSION).encode())
    hasher.part("namespace", namespace.encode())
    hasher.part("record", str(RECORD_VERSION).encode())
    hasher.part("key", key.encode())
    return hasher.digest()


def child_name(parent: Digest, reads: Sequence[Name], digests: Sequence[Digest]) -> Digest:
    """Return the name of the node below an inner one, for these digests of the requested reads."""
    hasher = Hasher("remote-node")
    hasher.part("parent", parent.encode())
    for (kind, where, name), digest in zip(reads, digests, strict=True):
        for label, value in (("kind", kind), ("where", where), ("name", name), ("digest", digest)):
            hasher.part(label, value.encode())
    return hasher.digest()


def artifacts_of(entry: Entry) -> dict[Digest, ArtifactRef]:
    """What a leaf's entry needs where it is fetched, by digest."""
    (trace,) = entry.traces
    return {ref.digest: ref for ref in (*products(trace), entry.parts)}


def encode_node(node: TrieNode, trust: Trust) -> bytes:
    """A node as a row. Raises StoreFault REMOTE_SKIPPED for one that is too large."""
    return signed_row(_MAGIC, msgspec.json.encode(node), trust)


def signed_row(magic: bytes, body: bytes, trust: Trust) -> bytes:
    """A row with a signature of its magic and its body. Raises StoreFault REMOTE_SKIPPED for one that is too large."""
    signature = trust.signature(magic + body)
    rest = _LENGTH.pack(len(signature)) + signature + body
    row = magic + _checksum(magic, rest) + rest
    if len(row) > MAX_ROW:
        raise StoreFault(Fault.REMOTE_SKIPPED, f"a row of {len(row)} bytes; at most {MAX_ROW} are kept")
    return row


def trusted_body(magic: bytes, row: bytes, name: Digest, trust: Trust) -> bytes:
    """The body of a row that came as the one of that name. Raises StoreFault REMOTE_CORRUPT, REMOTE_UNTRUSTED."""
    at = len(magic) + _DIGEST
    begin = at + _LENGTH.size
    if len(row) > MAX_ROW or not row.startswith(magic) or len(row) < begin:
        raise StoreFault(Fault.REMOTE_CORRUPT, f"row {name[:12]} is no row of this version")
    if row[len(magic) : at] != _checksum(magic, row[at:]):
        raise StoreFault(Fault.REMOTE_CORRUPT, f"row {name[:12]} is not as it was written")
    end = begin + _LENGTH.unpack_from(row, at)[0]
    if why := trust.why_untrusted(row[begin:end], magic + row[end:]):
        raise StoreFault(Fault.REMOTE_UNTRUSTED, f"row {name[:12]} {why}")
    return row[end:]


def _checksum(magic: bytes, rest: bytes) -> bytes:
    return bytes.fromhex(digest_bytes(magic + rest))


def decode_node(row: bytes, name: Digest, key: Digest, trust: Trust) -> TrieNode:
    """The node in a row that came as the one of that name, on the way to ``key``.

    Raises StoreFault REMOTE_CORRUPT, REMOTE_UNTRUSTED.
    """

    def bad_row(why: str) -> StoreFault:
        return StoreFault(Fault.REMOTE_CORRUPT, f"row {name[:12]} {why}")

    node = from_json(trusted_body(_MAGIC, row, name, trust), TrieNode, bad_row, "is malformed")
    if node.version != VERSION or node.name != name:
        raise bad_row(f"is that of {node.name[:12]}, version {node.version}")
    if node.entry is None:
        if len(node.requested_reads) > _MAX_READS or len(set(node.requested_reads)) != len(node.requested_reads):
            raise bad_row(f"says to look at {len(node.requested_reads)} things")
        for read in node.requested_reads:
            if why := why_no_read(*read):
                raise bad_row(f"says to look at one {why}")
    elif why := "is a leaf of more than one run" if len(node.entry.traces) != 1 else why_unfit(node.entry, key):
        raise bad_row(why)
    return node


def deflate(data: bytes) -> bytes:
    """Compress small content for a leaf."""
    return zlib.compress(data, 6)


def inflate(data: bytes, size: int) -> bytes:
    """The content again, and no more of it than a byte over what it should have. Raises StoreFault REMOTE_CORRUPT."""
    try:
        return zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as error:
        raise StoreFault(Fault.REMOTE_CORRUPT, f"an artifact in a row: {error}") from error
