"""MLIR bytecode without MLIR: sections, strings and resources, validated in full. No byte of a resource is read.

The format (LLVM, ``mlir/docs/BytecodeFormat.md``; numbers of sections and kinds from ``mlir/lib/Bytecode/Encoding.h``
and ``AsmState.h``), versions 0 to 6:

    file      "ML\\xefR", varint version, producer (ends with NUL), sections up to the end of the file
    varint    the number of 0 bits below the lowest 1 bit of the first byte is the number of bytes that follow; the bits
              above it and the following bytes are the value, little-endian. First byte 0: the next 8 bytes are it.
    section   u8 id | 0x80 if aligned, varint length, if aligned: varint alignment (a power of two) and 0xCB up to a
              multiple of it from the start of the file; data. Each id at most once:
              0 strings, 1 dialects, 2 attributes and types, 3 their offsets, 4 IR, 5 resources, 6 their offsets,
              7 dialect versions, 8 properties
    strings   varint count, varint length of each (its NUL included) from the last to the first, the strings
    6         varint number of external groups, groups up to the end of the section: varint key (a string), varint
              count, and so many {varint key (a string), varint size, u8 kind: 0 blob, 1 bool, 2 string}. External
              groups come first, then dialects.
    5         what 6 lists, one after the other, each of the size stated there
    blob      varint alignment, varint size, 0xCB up to a multiple of the alignment from the start of the file, bytes

A blob of a dialect with size 0 in section 6 (not even a head) is declared and has no bytes: that is how MLIR itself
writes a module with ``--elide-resource-data-from-bytecode``. What is stricter here than in MLIR's reader: a blob has to
end where its entry ends, and a name may occur once in its group.

Types of resources, and constants that are not resources (``dense<...>``), are in section 2 in encodings that belong to
the dialects; they stay in the IR, and are in its hash by value.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from cachec.base.hashing import Hasher
from cachec_mlir.blobs import Blob, Resource, Resources
from cachec_mlir.module_input import ModuleInput, Source, open_input

MAGIC = b"ML\xefR"
PAD = b"\xcb"
STRINGS, RESOURCES, OFFSETS = 0, 5, 6
BLOB, BOOL, STRING = 0, 1, 2
_SECTIONS = 9
_REQUIRED = (0, 1, 2, 3, 4)
_VERSION = 6
#: Bytes of any one section other than the resources: more is no module, but would all be read.
_MAX_SECTION = 1 << 30
_MAX_ALIGNMENT = 1 << 32
#: A producer is a line, or a line and the spaces that a link fills it with; a section's head is 1 + 9 + 9 bytes.
_HEAD, _FILLED_HEAD = 1 << 12, 1 << 18
_SECTION_HEAD = 19
#: First byte of a number -> its bytes in all.
_WIDTHS = bytes((first & -first).bit_length() or 9 for first in range(256))
#: Two numbers, and the padding up to an alignment of 64.
_BLOB_HEAD = 18 + 64


class BytecodeSection(NamedTuple):
    """A section. offset, nbytes: of its data. alignment: 1 where it states none."""

    id: int
    offset: int
    nbytes: int
    alignment: int


class ResourceEntry(NamedTuple):
    """A resource as section 6 states it. key: a number in the string table. offset, nbytes: with its head."""

    key: int
    kind: int
    offset: int
    nbytes: int


class Group(NamedTuple):
    """The resources of a dialect or of an external owner. key: a number in the string table."""

    key: int
    external: bool
    entries: tuple[ResourceEntry, ...]


class Bytecode:
    """An opened module. version, producer: from its header. sections: in the order of the file."""

    def __init__(self, source: Source) -> None:
        """Read everything but IR and resources. Raises CheckpointError (naming the byte), OSError."""
        self.input = open_input(source)
        self.version, self.producer, self.start = _header(self.input)
        self.sections = _sections(self.input, self.start)
        by_id = {section.id: section for section in self.sections}
        self.strings = _Strings(self.input, by_id[STRINGS])
        offsets = by_id.get(OFFSETS)
        self.external_groups, self.groups = (
            (0, ()) if offsets is None else _groups(self.input, offsets, by_id[RESOURCES], self.strings)
        )
        #: The blobs of dialects, with bytes or without: name, group and entry of each.
        self.named = self._name()
        self.resources = Resources(
            {name: number for number, (name, _, entry) in enumerate(self.named) if entry.nbytes}, self._resource
        )

    @property
    def names_without_bytes(self) -> tuple[str, ...]:
        """Names of the resources that have no bytes, in order."""
        return tuple(name for name, _, entry in self.named if not entry.nbytes)

    def string_of(self, entry: ResourceEntry) -> str:
        """The value of a resource of kind ``STRING``. Raises CheckpointError."""
        what = "a string of a resource"
        number = _Cursor(self.input, self.input.at(entry.offset, entry.nbytes, what), entry.offset, what).varint()
        if number >= len(self.strings):
            raise self.input.error(entry.offset, f"{what} expected as one of {len(self.strings)}, found {number}")
        return self.strings[number]

    def _name(self) -> list[tuple[str, Group, ResourceEntry]]:
        named: list[tuple[str, Group, ResourceEntry]] = []
        visited: set[str] = set()
        for group in self.groups:
            if group.external:
                continue
            owner = self.strings[group.key]
            prefix = "" if owner == "builtin" else owner + ":"
            for entry in group.entries:
                if entry.kind != BLOB:
                    continue
                key = self.strings[entry.key]
                name = prefix + key
                if name in visited:
                    raise self.input.error(entry.offset, f"resource {name!r} expected once, found again")
                visited.add(name)
                named.append((name, group, entry))
        return named

    def _resource(self, number: int) -> Resource:
        name, group, entry = self.named[number]
        return resource(self.input, name, (self.strings[group.key], self.strings[entry.key]), entry)


def resource(source: ModuleInput, name: str, place: tuple[str, str], entry: ResourceEntry) -> Resource:
    """Read and check the head of a blob. place: group and key. Raises CheckpointError."""
    # Modules have thousands of these: texts for errors are made when there is one.
    _, _, offset, entry_nbytes = entry
    head = source.at(
        offset, _BLOB_HEAD if entry_nbytes > _BLOB_HEAD else entry_nbytes, "the head of a resource"
    )  # and most padding
    try:
        alignment, at = _number(head, 0)
        nbytes, at = _number(head, at)
    except IndexError as error:
        raise source.error(offset + len(head), f"resource {name!r} ends in the middle of a number") from error
    if alignment == 0 or alignment & (alignment - 1) or alignment >= _MAX_ALIGNMENT:
        _check_alignment(source, offset, alignment, f"resource {name!r}")
    padding = offset + at
    data = padding + -padding % alignment
    if data + nbytes != offset + entry_nbytes:
        raise source.error(
            offset,
            f"resource {name!r} expected to end with its entry at byte {offset + entry_nbytes}, found {data + nbytes}",
        )
    padded = head[at : data - offset]
    if len(padded) < data - padding:
        _check_padding(source, padding, data, f"resource {name!r}")
    elif padded.count(PAD) != len(padded):
        raise source.error(padding, f"resource {name!r} expected padding of 0xCB up to byte {data}, found other bytes")
    return Resource(name, *place, alignment, Blob(source.range(data, nbytes)))


def topology(source: Source | Bytecode) -> str:
    """64 hexadecimal characters over a module without the bytes of its resources.

    Without MLIR no more can be left out: locations, the producer, the order of resources and constants that are not
    resources all count. Sizes and alignments of resources do; resources that are no dialect's blobs do by value. Reads
    every head.
    """
    module = source if isinstance(source, Bytecode) else Bytecode(source)
    hasher = Hasher("mlir-bytecode")
    hasher.part("version", str(module.version).encode())
    hasher.part("producer", module.producer.rstrip(b" "))  # without what a link may have filled it with
    for section in module.sections:
        if section.id not in {RESOURCES, OFFSETS}:
            hasher.part(f"section {section.id}", module.input.at(section.offset, section.nbytes, "a section"))
    for group in module.groups:
        hasher.part("external" if group.external else "dialect", module.strings[group.key].encode())
        for entry in group.entries:
            name = module.strings[entry.key]
            if group.external or entry.kind != BLOB:
                hasher.part(f"{entry.kind} {name}", module.input.at(entry.offset, entry.nbytes, f"resource {name!r}"))
            elif entry.nbytes:
                blob = resource(module.input, name, ("", name), entry)
                hasher.part(f"blob {name}", f"{blob.alignment} {blob.nbytes}".encode())
            else:
                hasher.part(f"declared {name}", b"")
    return hasher.digest()


def is_bytecode(source: Source) -> bool:
    """Whether a module begins as bytecode does."""
    if isinstance(source, str | os.PathLike):
        return open_input(source).start(0, len(MAGIC)) == MAGIC
    return bytes(memoryview(source)[: len(MAGIC)]) == MAGIC


def varint(value: int) -> bytes:
    """A number below 2**64 as MLIR writes it."""
    length = max(1, -(-value.bit_length() // 7))
    if length > 8:
        return b"\0" + value.to_bytes(8, "little")
    return ((value * 2 + 1) << (length - 1)).to_bytes(length, "little")


def _number(data: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends. Raises IndexError at the end of the data."""
    width = _WIDTHS[data[at]]
    end = at + width
    if end > len(data):
        raise IndexError(end)
    return int.from_bytes(data[at:end], "little") >> min(width, 8), end


class _Cursor:
    """Reads numbers from bytes that were read from ``base``."""

    __slots__ = ("_base", "_data", "_input", "_what", "at")

    def __init__(self, source: ModuleInput, data: bytes, base: int, what: str) -> None:
        self._input = source
        self._data = data
        self._base = base
        self._what = what
        self.at = 0

    @property
    def offset(self) -> int:
        return self._base + self.at

    @property
    def remaining(self) -> int:
        return len(self._data) - self.at

    def byte(self) -> int:
        """The next byte. Raises CheckpointError at the end."""
        if self.at >= len(self._data):
            raise self._short()
        self.at += 1
        return self._data[self.at - 1]

    def varint(self) -> int:
        """The next number. Raises CheckpointError at the end."""
        try:
            value, self.at = _number(self._data, self.at)
        except IndexError:
            raise self._short() from None
        return value

    def varints(self, count: int) -> list[int]:
        """The next ``count`` numbers. Raises CheckpointError at the end."""
        data, at, widths, numbers = self._data, self.at, _WIDTHS, []
        try:
            for _ in range(count):
                width = widths[data[at]]
                numbers.append(int.from_bytes(data[at : at + width], "little") >> min(width, 8))
                at += width
        except IndexError:
            self.at = at
            raise self._short() from None
        self.at = at
        if at > len(data):
            raise self._short()
        return numbers

    def entries(self, count: int) -> Iterator[tuple[int, int, int, int]]:
        """``count`` times place in the module, two numbers, a byte. Modules have thousands of these."""
        data, at, widths = self._data, self.at, _WIDTHS
        try:
            for _ in range(count):
                start = at
                end = at + widths[data[at]]
                key = int.from_bytes(data[at:end], "little") >> min(end - at, 8)
                at = end + widths[data[end]]
                nbytes = int.from_bytes(data[end:at], "little") >> min(at - end, 8)
                at += 1
                # What is beyond the end has no kind, so no number that was cut gets this far.
                yield self._base + start, key, nbytes, data[at - 1]
        except IndexError:
            self.at = min(at, len(data))
            raise self._short() from None
        self.at = at

    def _short(self) -> Exception:
        return self._input.error(self.offset, f"{self._what} ends in the middle of a number")


class _Strings:
    """The string table; a string is decoded when it is asked for."""

    def __init__(self, source: ModuleInput, section: BytecodeSection) -> None:
        self._input = source
        self._section = section
        self._decoded: dict[int, str] = {}
        data = self._data = source.at(section.offset, section.nbytes, "the string section")
        cursor = _Cursor(source, data, section.offset, "the string section")
        count = cursor.varint()
        if count > cursor.remaining:
            raise source.error(section.offset, f"expected strings within {section.nbytes} bytes, found {count} strings")
        lengths = cursor.varints(count)
        lengths.reverse()
        self._ends = list(accumulate(lengths, initial=cursor.at))
        if self._ends[-1] != len(data):
            raise source.error(
                cursor.offset,
                f"the strings expected to fill the {cursor.remaining} bytes that are left of their section, "
                f"found {self._ends[-1] - cursor.at}",
            )
        for length, end in zip(lengths, self._ends[1:], strict=True):
            if length == 0 or data[end - 1]:
                raise source.error(section.offset + max(end - 1, 0), "a string expected to end with NUL, found none")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> str:
        known = self._decoded.get(number)
        if known is None:
            known = self._decoded[number] = self._decode(number)
        return known

    def with_more(self, texts: Sequence[str]) -> bytes:
        """Return the section with more strings, which get the next numbers."""
        bounds = zip(self._ends, self._ends[1:], strict=False)
        raw = [self._data[start:end] for start, end in bounds] + [text.encode() + b"\0" for text in texts]
        lengths = b"".join(varint(len(each)) for each in reversed(raw))
        return varint(len(raw)) + lengths + b"".join(raw)

    def _decode(self, number: int) -> str:
        start, end = self._ends[number], self._ends[number + 1] - 1
        try:
            return self._data[start:end].decode()
        except UnicodeDecodeError as error:
            raise self._input.error(self._section.offset + start, "a name expected in UTF-8, found none") from error


def _header(source: ModuleInput) -> tuple[int, bytes, int]:
    """Version, producer, and where the sections begin."""
    head = source.start(0, _HEAD)
    if head[: len(MAGIC)] != MAGIC:
        raise source.error(0, f"expected MLIR bytecode ({MAGIC!r}), found {head[: len(MAGIC)]!r}")
    cursor = _Cursor(source, head, 0, "the header")
    cursor.at = len(MAGIC)
    version = cursor.varint()
    if version > _VERSION:
        raise source.error(len(MAGIC), f"bytecode version expected at most {_VERSION}, found {version}")
    end = head.find(b"\0", cursor.at)
    if end < 0:
        head = source.start(0, _FILLED_HEAD)
        end = head.find(b"\0", cursor.at)
    if end < 0:
        raise source.error(cursor.at, f"the producer expected to end with NUL within {len(head)} bytes, found none")
    return version, head[cursor.at : end], end + 1


def _sections(source: ModuleInput, start: int) -> tuple[BytecodeSection, ...]:
    sections: dict[int, BytecodeSection] = {}
    at = start
    while at < source.size:
        cursor = _Cursor(source, source.start(at, _SECTION_HEAD), at, "a section")
        tag = cursor.byte()
        number, what = tag & 0x7F, f"section {tag & 0x7F}"
        if number >= _SECTIONS:
            raise source.error(at, f"a section expected to be one of 0 to {_SECTIONS - 1}, found {number}")
        if number in sections:
            raise source.error(at, f"{what} expected once, found again")
        nbytes, alignment, data = cursor.varint(), 1, 0
        if tag & 0x80:
            alignment = cursor.varint()
            _check_alignment(source, at, alignment, what)
        data = cursor.offset + -cursor.offset % alignment
        source.within(data, nbytes, what)
        if number != RESOURCES and nbytes > _MAX_SECTION:
            raise source.error(at, f"{what} expected of at most {_MAX_SECTION} bytes, found {nbytes}")
        _check_padding(source, cursor.offset, data, what)
        sections[number] = BytecodeSection(number, data, nbytes, alignment)
        at = data + nbytes
    for number in _REQUIRED:
        if number not in sections:
            raise source.error(source.size, f"section {number} expected, found the end of the module")
    if (RESOURCES in sections) != (OFFSETS in sections):
        raise source.error(source.size, "sections 5 and 6 expected both or neither, found one")
    return tuple(sections.values())


def _groups(
    source: ModuleInput, section: BytecodeSection, data: BytecodeSection, strings: _Strings
) -> tuple[int, tuple[Group, ...]]:
    """How many groups are external, and all groups."""
    cursor = _Cursor(
        source, source.at(section.offset, section.nbytes, "section 6"), section.offset, "the resource offset section"
    )
    external = cursor.varint()
    groups: list[Group] = []
    owners: set[tuple[bool, int]] = set()
    at, end = data.offset, data.offset + data.nbytes
    known = len(strings)
    while cursor.remaining:
        here = cursor.offset
        is_external = len(groups) < external
        owner, count = cursor.varint(), cursor.varint()
        if owner >= len(strings) or (is_external, owner) in owners:
            raise source.error(here, f"a group expected to name one of {len(strings)} strings, once; found {owner}")
        owners.add((is_external, owner))
        if count * 3 > cursor.remaining:
            raise source.error(here, f"{count} resources expected within {cursor.remaining} bytes of their section")
        entries: list[ResourceEntry] = []
        keys: set[int] = set()
        for place, key, nbytes, kind in cursor.entries(count):
            if key >= known or key in keys:
                raise source.error(
                    place, f"a resource expected to name one of {len(strings)} strings once, found {key}"
                )
            if kind > STRING:
                raise source.error(place, f"the kind of a resource expected to be 0, 1 or 2, found {kind}")
            if nbytes > end - at:
                raise source.error(place, f"a resource expected within {end - at} bytes, found one of {nbytes}")
            if not nbytes and (is_external or kind != BLOB):
                raise source.error(place, "only a dialect's blob may be without bytes, found another resource")
            keys.add(key)
            entries.append(ResourceEntry(key, kind, at, nbytes))
            at += nbytes
        groups.append(Group(owner, is_external, tuple(entries)))
    if len(groups) < external:
        raise source.error(section.offset, f"{external} external groups expected, found {len(groups)}")
    if at != end:
        raise source.error(at, f"the resources expected to fill their section up to byte {end}, found {end - at} more")
    return external, tuple(groups)


def _check_alignment(source: ModuleInput, offset: int, alignment: int, what: str) -> None:
    if alignment == 0 or alignment & (alignment - 1) or alignment >= _MAX_ALIGNMENT:
        raise source.error(offset, f"{what}: an alignment expected that is a power of two, found {alignment}")


def _check_padding(source: ModuleInput, start: int, end: int, what: str) -> None:
    """Raise CheckpointError unless all bytes between are padding."""
    step = 1 << 16
    for at in range(start, end, step):
        filling = source.at(at, min(step, end - at), f"the padding of {what}")
        if filling.count(PAD) != len(filling):
            raise source.error(at, f"{what} expected padding of 0xCB up to byte {end}, found other bytes")
