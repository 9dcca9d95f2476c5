"""What a miss is compared with: rows of the newest keys that are alike in one way, each enough to choose the nearest.

A call is found again by what it works on (``Part.subject``: a source, an output, a program), by the content of that,
and where it works on nothing that has a name by its arguments, all of them and all but some. For each of these there is
a row of the keys that have it in common (``neighbourhood``), however many others the store holds; the row of a stage
itself has its newest calls of the last kind. A call has four rows at most, as each miss reads them, and writes them.

A part of a key stands in a row as a print: 8 bytes, the CRC-32 of its kind and name and the first 4 bytes of its
digest. The row holds each distinct print once, and for each key a set of bits over them, so that a key costs some 200
bytes and to compare two is one operation. A print chooses what is shown to a person and nothing else: where two
collide, or a row is lost, another entry is taken for the nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from functools import reduce
from itertools import count
from operator import or_
from typing import NamedTuple
from zlib import crc32

import msgspec

from cachec.base.hashing import Hasher
from cachec.errors import StoreFault
from cachec.model import RECORD_VERSION, ArtifactRef, Digest, Part, PartKind
from cachec.store.index import Index
from cachec.store.row_codec import unpack

#: Keys in the row of a stage, and in one of calls that are alike.
MAX_KEYS = 64
_MAX_ALIKE = 32

#: Prints of one key: of one with more parts, the smallest, so that the same are taken of its neighbours.
_MAX_PRINTS = 4096

#: Bytes of prints and sets in such a row, beyond which the oldest keys give way.
_MAX_BYTES = 1 << 16
_MAX_BYTES_ALIKE = 1 << 14

_WIDTH = 8

#: What a call is given.
_GIVEN = frozenset({PartKind.ARGUMENT, PartKind.FILE, PartKind.PROGRAM, PartKind.WEIGHTS})
_INPUTS = frozenset({PartKind.FILE, PartKind.PROGRAM})

#: What the names of rows of calls that are alike begin with; how many rows an entry may have, and the store beside.
_ROW = "near:"
_ROWS = 4
_SPARE_ROWS = 4096


class Near(msgspec.Struct, frozen=True):
    """A key of a row."""

    key: Digest
    #: The artifact that holds its named parts.
    parts: ArtifactRef
    #: Bit n is set for print n of the row, little-endian.
    members: bytes


class Recent(msgspec.Struct, frozen=True, kw_only=True):
    """The newest keys of one stage that are alike, newest first."""

    version: int = RECORD_VERSION
    stage: str
    #: By what, empty for the row of the stage.
    alike: str = ""
    #: Of their parts, 8 bytes each; zeros where one is unused.
    prints: bytes = b""
    near: tuple[Near, ...] = ()

    @property
    def keys(self) -> tuple[Digest, ...]:
        """The keys, newest first."""
        return tuple(each.key for each in self.near)

    def nearest(self, parts: Sequence[Part]) -> list[Near]:
        """The keys, that with the fewest parts that differ from ``parts`` first; of equals, the newest."""
        return sorted(self.near, key=self._distance({*prints_of(parts)}))

    def _distance(self, mine: Set[bytes]) -> Callable[[Near], int]:
        """How many parts of a key of this row differ from those of these prints."""
        place = dict(zip(self._table(), count(), strict=False))
        shared = sum(1 << place[each] for each in mine if each in place)

        def distance(near: Near) -> int:
            theirs = int.from_bytes(near.members, "little")
            # A part that changed is one on either side, and one difference.
            return max(theirs.bit_count(), len(mine)) - (theirs & shared).bit_count()

        return distance

    def with_newest(self, key: Digest, described: ArtifactRef, mine: Sequence[bytes]) -> Recent:
        """This row with ``key`` in front. described: the artifact that holds its parts. mine: the prints of these."""
        table = self._table()
        most, nbytes = (_MAX_ALIKE, _MAX_BYTES_ALIKE) if self.alike else (MAX_KEYS, _MAX_BYTES)
        others = [each for each in self.near if each.key != key][: most - 1]
        while True:
            used = reduce(or_, (int.from_bytes(each.members, "little") for each in others), 0)
            place = {each: bit for bit, each in enumerate(table) if used >> bit & 1}
            fresh = [each for each in mine if each not in place]
            size = len(place) + len(fresh)
            if not others or size * _WIDTH + (len(others) + 1) * size // 8 <= nbytes:
                break
            others.pop()
        place.update(zip(fresh, (bit for bit in count() if not used >> bit & 1), strict=False))
        prints = bytearray(_WIDTH * (max(place.values(), default=-1) + 1))
        for each, bit in place.items():
            prints[_WIDTH * bit : _WIDTH * (bit + 1)] = each
        members = sum(1 << place[each] for each in mine)
        newest = Near(key, described, members.to_bytes((members.bit_length() + 7) // 8, "little"))
        return Recent(stage=self.stage, alike=self.alike, prints=bytes(prints), near=(newest, *others))

    def _table(self) -> list[bytes]:
        return [self.prints[at : at + _WIDTH] for at in range(0, len(self.prints), _WIDTH)]


class ComparedInput(NamedTuple):
    """Something that a call works on."""

    subject: str
    #: With ``content``: the rows of calls that have them in common with it; content is None where it has no row of its
    #: own.
    name: str
    content: str | None


class Neighbourhood(NamedTuple):
    """The rows that a call is found in, by ``Recent.alike``: ``_ROWS`` at most."""

    inputs: tuple[ComparedInput, ...] = ()
    #: Of what a command writes, or of all names of many inputs at once.
    outputs: tuple[str, ...] = ()
    #: Of callables beside a file.
    companions: tuple[str, ...] = ()
    #: Of all of them at once.
    contents: tuple[str, ...] = ()
    #: Where it works on nothing that has a name; the row of the stage is one of these.
    arguments: tuple[str, ...] = ()

    def rows(self) -> list[str]:
        """All of them, each once."""
        inputs = [row for each in self.inputs for row in (each.name, each.content) if row is not None]
        return list(dict.fromkeys((*inputs, *self.outputs, *self.companions, *self.contents, *self.arguments)))


def neighbourhood(stage: str, parts: Sequence[Part]) -> Neighbourhood:
    """The rows of a call of a stage with these parts."""

    def row(*pieces: str) -> str:
        hasher = Hasher("alike")
        for piece in (stage, *pieces):
            hasher.part("piece", piece.encode("utf-8", "surrogateescape"))
        return hasher.digest()[:32]

    def name(part: Part) -> str:
        return row("name", part.name, part.subject)

    named = [part for part in parts if part.subject]
    inputs = [part for part in named if part.kind in _INPUTS]
    companion_parts = [part for part in named if part.kind not in _INPUTS]
    if not inputs:
        inputs, companion_parts = companion_parts, []
    if not inputs:
        return Neighbourhood(arguments=_rows_of_arguments([part for part in parts if part.kind in _GIVEN], row))
    outputs = [name(part) for part in companion_parts if part.kind is PartKind.ORDER][:1]
    if len(inputs) == 1 or (len(inputs) == 2 and not outputs):
        each = tuple(
            ComparedInput(part.subject, name(part), row("content", _base(part.subject), part.digest)) for part in inputs
        )
        callables = [name(part) for part in companion_parts if part.kind is not PartKind.ORDER]
        remaining = _ROWS - 2 * len(inputs) - len(outputs)
        return Neighbourhood(each, tuple(outputs), tuple(callables[:remaining]))
    # Of more than there are rows for, the first are looked for by their names, and all of them together.
    count = 2
    if not outputs and len(inputs) == 3:
        count = 3
    elif not outputs:
        outputs = [row("names", *(part.subject for part in inputs))]
    contents = row("contents", *(part.digest for part in inputs))
    first = tuple(ComparedInput(part.subject, name(part), None) for part in inputs[:count])
    return Neighbourhood(first, tuple(outputs), contents=(contents,))


def _rows_of_arguments(given: Sequence[Part], row: Callable[..., str]) -> tuple[str, ...]:
    """Of calls that have all arguments in common, and all but one: but one of three groups, where they are more.

    Where there are three groups, the row of all is left out: a call with the same arguments is in each of them.
    """
    names = [f"{part.kind}/{part.name}" for part in given]
    marks = [f"{name} {part.digest}" for name, part in zip(names, given, strict=True)]
    groups = min(len(marks), 3) if len(marks) > 1 else 0
    but = []
    for group in range(groups):
        remaining = [mark for at, mark in enumerate(marks) if at % groups != group]
        but.append(row("but", *names[group::groups], *remaining))
    return ("", *([row("all", *marks)] if groups < 3 else ()), *but)


class Neighbours(NamedTuple):
    """The keys that a call is compared with, the nearest first."""

    nearest: tuple[Near, ...]
    #: The inputs that none of them works on; none where the call is compared all the same.
    unknown: tuple[str, ...] = ()


def neighbours(place: Neighbourhood, rows: Mapping[str, Recent], parts: Sequence[Part]) -> Neighbours:
    """The keys nearest to a call: of the same inputs by name, then by content, or of the same arguments; then with the
    fewest parts that differ, then the newest. For files of the same names the number of parts comes before the content:
    a command whose source was edited twice is nearest to the same command."""
    contents = [each.content for each in place.inputs if each.content is not None]

    def is_known(each: ComparedInput) -> bool:
        return bool(rows[each.name].near or (each.content is not None and rows[each.content].near))

    unknown = tuple(each.subject for each in place.inputs if not is_known(each))
    if len(place.inputs) > 1 and any(rows[row].near for row in (*place.outputs, *place.contents)):
        unknown = ()  # one input more, of what is known by its output; or all that is known, under other names
    by_name = [
        set(rows[row].keys) for row in (*(each.name for each in place.inputs), *place.outputs, *place.companions)
    ]
    by_content = [set(rows[row].keys) for row in (*contents, *place.contents)]
    by_arguments = [set(rows[row].keys) for row in place.arguments if row]
    is_program = any(part.kind is PartKind.PROGRAM for part in parts)
    found: dict[Digest, tuple[tuple[int, int, int, int], Near]] = {}
    mine = {*prints_of(parts)}
    for name in place.rows():
        distance = rows[name]._distance(mine)
        for near in rows[name].near:
            if near.key not in found:
                named = sum(near.key in keys for keys in by_name) if by_name else 0
                alike = sum(near.key in keys for keys in by_content) if by_content else 0
                alike += bool(by_arguments) and all(near.key in keys for keys in by_arguments)
                is_edited = named and not is_program  # a path says which file that is, a program's name does not
                found[near.key] = (-named, 0 if is_edited else -alike, distance(near), -alike), near
    ranked = sorted(found.values(), key=lambda each: each[0])
    return Neighbours(tuple(near for _, near in ranked), unknown)


def forgotten(index: Index, entries: Collection[str]) -> list[str]:
    """The rows that are to go. entries: the names of those that are there, with their namespaces.

    A row of evicted keys alone still tells that they were there, so it stays while such rows are few.
    """
    if sum(1 for _ in index.keys(prefix=_ROW)) <= _ROWS * len(entries) + _SPARE_ROWS:
        return []
    gone = []
    for name, row in index.rows(_ROW):
        namespace = name.split(":")[1]
        try:
            keys = () if row is None else unpack(row, Recent, name).keys
        except StoreFault:
            keys = ()  # damaged: what goes with it is an explanation
        if not any(f"{namespace}:{key}" in entries for key in keys):
            gone.append(name)
    return gone


def _base(path: str) -> str:
    """A source that is in another folder, or checkout, is the same one where its content is."""
    return path.rpartition("/")[2]


def prints_of(parts: Sequence[Part]) -> list[bytes]:
    """The prints of parts, as rows hold them."""
    return sorted({_print(f"{part.kind}/{part.name}", part.digest) for part in parts})[:_MAX_PRINTS]


def _print(name: str, digest: Digest) -> bytes:
    return crc32(name.encode("utf-8", "surrogateescape")).to_bytes(4, "little") + bytes.fromhex(digest[:8])
