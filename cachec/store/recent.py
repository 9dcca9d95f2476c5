"""What a miss is compared with: one row a stage, which is enough to choose the nearest of its newest keys.

A part of a key stands here as a print: 8 bytes, the CRC-32 of its label and the first 4 bytes of its digest. The row
holds each distinct print once, and for each key a set of bits over them, so that a key costs some 200 bytes and to
compare two is one operation. A print chooses what is shown to a person and nothing else: where two collide, another
entry is taken for the nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import count
from operator import or_
from zlib import crc32

import msgspec

from cachec.model import ArtifactRef, Digest, Part, PartKind

#: Keys in one row.
MAX_KEYS = 128

#: Prints of one key: of one with more parts, the smallest, so that the same are taken of its neighbours.
_MAX_PRINTS = 4096

#: Bytes of prints and sets in one row, beyond which the oldest keys give way.
_MAX_BYTES = 1 << 16

_WIDTH = 8

#: What a call works on: an entry of the same inputs is nearer than one of the same options.
_INPUTS = frozenset({PartKind.FILE, PartKind.PROGRAM, PartKind.WEIGHTS})


class Near(msgspec.Struct, frozen=True):
    """A key of a stage. parts: the artifact that holds its named parts. members: bit n is set for print n of the row,
    little-endian."""

    key: Digest
    parts: ArtifactRef
    members: bytes


class Recent(msgspec.Struct, frozen=True, kw_only=True):
    """The newest keys of one stage, newest first. prints: of their parts, 8 bytes each; zeros where one is unused."""

    version: int
    stage: str
    prints: bytes = b""
    near: tuple[Near, ...] = ()

    @property
    def keys(self) -> tuple[Digest, ...]:
        """The keys, newest first."""
        return tuple(each.key for each in self.near)

    def nearest(self, parts: Sequence[Part]) -> list[Near]:
        """The keys, that nearest to ``parts`` first: of the same inputs by name, then by content, then with the fewest
        parts that differ, then the newest."""
        mine = set(_prints(parts))
        inputs = {_print(part)[:4] for part in parts if part.kind in _INPUTS}
        shared = named = 0
        for bit, each in enumerate(self._table()):
            shared |= (each in mine) << bit
            named |= (each[:4] in inputs) << bit

        def distance(near: Near) -> tuple[int, int, int]:
            theirs = int.from_bytes(near.members, "little")
            common = theirs & shared
            # A part that changed is one on either side, and one difference.
            differing = max(theirs.bit_count(), len(mine)) - common.bit_count()
            return -(theirs & named).bit_count(), -(common & named).bit_count(), differing

        return sorted(self.near, key=distance)

    def with_newest(self, key: Digest, described: ArtifactRef, parts: Sequence[Part]) -> Recent:
        """This row with ``key`` in front. described: the artifact that holds ``parts``."""
        mine, table = _prints(parts), self._table()
        kept = [each for each in self.near if each.key != key][: MAX_KEYS - 1]
        while True:
            used = reduce(or_, (int.from_bytes(each.members, "little") for each in kept), 0)
            place = {each: bit for bit, each in enumerate(table) if used >> bit & 1}
            fresh = [each for each in mine if each not in place]
            size = len(place) + len(fresh)
            if not kept or size * _WIDTH + (len(kept) + 1) * size // 8 <= _MAX_BYTES:
                break
            kept.pop()
        place.update(zip(fresh, (bit for bit in count() if not used >> bit & 1), strict=False))
        prints = bytearray(_WIDTH * (max(place.values(), default=-1) + 1))
        for each, bit in place.items():
            prints[_WIDTH * bit : _WIDTH * (bit + 1)] = each
        members = sum(1 << place[each] for each in mine)
        newest = Near(key, described, members.to_bytes((members.bit_length() + 7) // 8, "little"))
        return Recent(version=self.version, stage=self.stage, prints=bytes(prints), near=(newest, *kept))

    def _table(self) -> list[bytes]:
        return [self.prints[at : at + _WIDTH] for at in range(0, len(self.prints), _WIDTH)]


def _prints(parts: Sequence[Part]) -> list[bytes]:
    return sorted({_print(part) for part in parts})[:_MAX_PRINTS]


def _print(part: Part) -> bytes:
    return crc32(part.label.encode("utf-8", "surrogateescape")).to_bytes(4, "little") + bytes.fromhex(part.digest[:8])
