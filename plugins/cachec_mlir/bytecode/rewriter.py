"""Bytecode with other resources: stripped of its bytes, or linked with those of another module or a weight set.

All sections but 5 and 6 stay byte for byte, so names keep their numbers in the string table. The kernel copies the
bytes of weights.

MLIR's reader aligns by addresses, not by offsets in the file (``BytecodeReader.cpp``, ``alignTo``). So it reads a
resource only where LLVM gives the whole file the alignment of that resource. LLVM maps a file of four pages or more
to the start of a page, unless the file ends at the end of a page (``MemoryBuffer.cpp``, ``shouldUseMmap``). It copies
any other file to memory that is aligned to 16 bytes. A module with a larger alignment is therefore written so that LLVM
maps it: spaces at the end of the producer, which no reader interprets, and another place of section 5, do that.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from cachec.errors import LinkError
from cachec_mlir.blobs import BUFFER_ALIGNMENT, PAGE_ALIGNMENT, Blob
from cachec_mlir.bytecode.reader import (
    BLOB,
    MAGIC,
    OFFSETS,
    PAD,
    RESOURCES,
    STRINGS,
    Bytecode,
    Group,
    ResourceEntry,
    resource,
    varint,
)
from cachec_mlir.file_writer import Piece, StripResult
from cachec_mlir.module_input import Source
from cachec_mlir.weight_binding import BoundResource

#: LLVM maps files of four pages; with one byte more, the file does not end with a page.
_MAPPED = max(4 * 4096, mmap.PAGESIZE) + 1
#: What ``_layout`` adds to a producer.
_FILLER = b" "


def strip_bytecode(source: Source | Bytecode) -> StripResult:
    """Return the module with its resources only declared, and the resources in place, without reading them.

    External resources and those that are no blobs are settings; they stay. Raises CheckpointError, OSError.
    """
    module = source if isinstance(source, Bytecode) else Bytecode(source)
    pieces = _module(module, lambda group, entry: None)
    return StripResult(b"".join(_as_bytes(piece) for piece in pieces), module.resources)


class UnlinkedBytecode:
    """A module and its resources without bytes.

    there: names that it has bytes of. wanted: the others, with the types that the module states for each (bytecode:
    none, as only MLIR reads them). digits: whether blobs are written as hexadecimal text.
    """

    digits = False

    def __init__(self, ir: Source | Bytecode) -> None:
        """Raises CheckpointError, OSError."""
        self._module = ir if isinstance(ir, Bytecode) else Bytecode(ir)
        self.there = set(self._module.resources)
        self.wanted: dict[str, list[str]] = {name: [] for name in self._module.names_without_bytes}

    def alignments(self) -> set[int]:
        """Of the resources that it has bytes of."""
        return {each.alignment for each in self._module.resources.values()}

    def pieces(self, bound: Mapping[str, BoundResource], inline: Collection[str]) -> list[Piece]:
        """The module with these bytes; resources that it has bytes of stay. inline: of text alone, empty here."""
        module = self._module
        by_key: dict[tuple[int, int], BoundResource] = {}
        for name, group, entry in module.named:
            if name in bound:
                by_key[group.key, entry.key] = bound[name]

        def fill(group: Group, entry: ResourceEntry) -> tuple[int, Blob] | None:
            if entry.nbytes:
                existing = resource(module.input, "", ("", ""), entry)
                return existing.alignment, existing.blob
            chosen = by_key[group.key, entry.key]
            return chosen.alignment, chosen.blob

        return _module(module, fill)


def rename_bytecode(module: Bytecode, names: Mapping[str, str]) -> bytes:
    """The stripped module with other names for resources that it declares without bytes: old -> new.

    Only the resource sections say names; what uses a resource has its number.
    """
    keys: dict[tuple[int, int], int] = {}
    added: list[str] = []
    for name, group, entry in module.named:
        if name in names:
            keys[group.key, entry.key] = len(module.strings) + len(added)
            added.append(names[name])
    pieces = _module(module, lambda group, entry: None, keys, module.strings.with_more(added))
    return b"".join(_as_bytes(piece) for piece in pieces)


def _as_bytes(piece: Piece) -> bytes:
    return piece if isinstance(piece, bytes) else b"".join(piece.pieces())


def _module(
    module: Bytecode,
    fill: Callable[[Group, ResourceEntry], tuple[int, Blob] | None],
    keys: Mapping[tuple[int, int], int] | None = None,
    strings: bytes | None = None,
) -> list[Piece]:
    """The pieces of the module with each dialect's blob as ``fill`` says: alignment and bytes, None for none.

    strings: another string table. keys: the numbers in it of resources, by group and key, that have another name now.
    Raises LinkError for an alignment with which MLIR's tools could not read the module.
    """
    source = module.input
    offsets, data, data_nbytes, alignment = _resources(module, fill, keys or {})
    sections: list[_Section] = []
    for section in module.sections:
        if section.id == RESOURCES:
            sections.append(_Section(section.id, data, data_nbytes, alignment))
        elif section.id == OFFSETS:
            sections.append(_Section(section.id, [offsets], len(offsets), section.alignment))
        elif section.id == STRINGS and strings is not None:
            sections.append(_Section(section.id, [strings], len(strings), section.alignment))
        else:
            body: list[Piece] = [source.at(section.offset, section.nbytes, f"section {section.id}")]
            sections.append(_Section(section.id, body, section.nbytes, section.alignment))
    source.check()
    return _layout(module, sections)


class _Section(NamedTuple):
    """A section that is written. nbytes: of its pieces."""

    id: int
    pieces: list[Piece]
    nbytes: int
    alignment: int


def _layout(module: Bytecode, sections: Sequence[_Section]) -> list[Piece]:
    """The pieces of a file that MLIR can read, see above."""
    producer = module.producer.rstrip(_FILLER)
    alignment = max(section.alignment for section in sections)
    pieces, nbytes = _assemble(module.version, producer, sections)
    if alignment <= BUFFER_ALIGNMENT:
        return pieces
    while nbytes < _MAPPED:  # padding that becomes unnecessary takes a part of what is added
        producer += _FILLER * (_MAPPED - nbytes)
        pieces, nbytes = _assemble(module.version, producer, sections)
    rest = [section for section in sections if section.id != RESOURCES]
    resources = [section for section in sections if section.id == RESOURCES]
    for number in range(len(rest)):
        if nbytes % PAGE_ALIGNMENT:
            break
        pieces, nbytes = _assemble(module.version, producer, [*rest[:number], *resources, *rest[number:]])
    return pieces


def _assemble(version: int, producer: bytes, sections: Sequence[_Section]) -> tuple[list[Piece], int]:
    """The pieces of a file with these sections, and its bytes."""
    start = MAGIC + varint(version) + producer + b"\0"
    out: list[Piece] = [start]
    at = len(start)
    for section in sections:
        aligned = section.alignment > 1
        head = bytes([section.id | (0x80 if aligned else 0)]) + varint(section.nbytes)
        head += varint(section.alignment) if aligned else b""
        head += PAD * (-(at + len(head)) % section.alignment)
        out += [head, *section.pieces]
        at += len(head) + section.nbytes
    return out, at


def _resources(
    module: Bytecode,
    fill: Callable[[Group, ResourceEntry], tuple[int, Blob] | None],
    keys: Mapping[tuple[int, int], int],
) -> tuple[bytes, list[Piece], int, int]:
    """Section 6, the pieces of section 5, its bytes and its alignment."""
    offsets = bytearray(varint(module.external_groups))
    pieces: list[Piece] = []
    at, most = 0, 1
    for group in module.groups:
        offsets += varint(group.key) + varint(len(group.entries))
        for entry in group.entries:
            added: list[Piece] = []
            if entry.kind != BLOB:
                added = [module.input.at(entry.offset, entry.nbytes, "a resource")]
            else:
                if group.external:
                    existing = resource(module.input, module.strings[entry.key], ("", ""), entry)
                    chosen: tuple[int, Blob] | None = (existing.alignment, existing.blob)
                else:
                    chosen = fill(group, entry)
                if chosen is not None:
                    align, blob = chosen
                    if align > PAGE_ALIGNMENT:
                        raise LinkError(
                            f"resource {module.strings[entry.key]!r} is aligned to {align} bytes, and MLIR's tools "
                            f"read bytecode with at most {PAGE_ALIGNMENT}; choose a smaller alignment, or link a text"
                        )
                    head = varint(align) + varint(blob.nbytes)
                    # From the start of the section, which is aligned to the largest of these in the file.
                    added = [head + PAD * (-(at + len(head)) % align), blob]
                    most = max(most, align)
            nbytes = sum(len(each) if isinstance(each, bytes) else each.nbytes for each in added)
            offsets += varint(keys.get((group.key, entry.key), entry.key)) + varint(nbytes) + bytes([entry.kind])
            pieces += added
            at += nbytes
    return bytes(offsets), pieces, at, most
