"""Bytecode with other resources: stripped of its bytes, or linked with those of another module or a weight set.

Everything but sections 5 and 6 is kept byte for byte, so names keep their numbers in the string table. Bytes of weights
are copied by the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from cachec_mlir.blobs import Blob
from cachec_mlir.bytecode.reading import (
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
from cachec_mlir.inputs import Source
from cachec_mlir.offers import Bound
from cachec_mlir.writing import Piece, Stripped


def strip_bytecode(source: Source | Bytecode) -> Stripped:
    """The module with its resources declared only, and these in place: nothing of them is read.

    External resources and those that are no blobs are settings; they stay. Raises CheckpointError, OSError.
    """
    module = source if isinstance(source, Bytecode) else Bytecode(source)
    pieces = _module(module, lambda group, entry: None)
    return Stripped(b"".join(_as_bytes(piece) for piece in pieces), module.resources)


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
        self.wanted: dict[str, list[str]] = {name: [] for name in self._module.declared}

    def pieces(self, bound: Mapping[str, Bound], inline: Collection[str]) -> list[Piece]:
        """The module with these bytes; resources that it has bytes of stay. inline: of text alone, empty here."""
        module = self._module
        by_key: dict[tuple[int, int], Bound] = {}
        for name, group, entry in module.named:
            if name in bound:
                by_key[group.key, entry.key] = bound[name]

        def fill(group: Group, entry: ResourceEntry) -> tuple[int, Blob] | None:
            if entry.nbytes:
                kept = resource(module.input, "", ("", ""), entry)
                return kept.alignment, kept.blob
            chosen = by_key[group.key, entry.key]
            return chosen.alignment, chosen.blob

        return _module(module, fill)


def renamed_bytecode(module: Bytecode, names: Mapping[str, str]) -> bytes:
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
    """
    source = module.input
    out: list[Piece] = [MAGIC + varint(module.version) + module.producer + b"\0"]
    at = len(out[0]) if isinstance(out[0], bytes) else 0
    offsets, data, data_nbytes, alignment = _resources(module, fill, keys or {})
    for section in module.sections:
        if section.id == RESOURCES:
            body, nbytes, align = data, data_nbytes, alignment
        elif section.id == OFFSETS:
            body, nbytes, align = [offsets], len(offsets), section.alignment
        elif section.id == STRINGS and strings is not None:
            body, nbytes, align = [strings], len(strings), section.alignment
        else:
            body = [source.at(section.offset, section.nbytes, f"section {section.id}")]
            nbytes, align = section.nbytes, section.alignment
        head = bytes([section.id | (0x80 if align > 1 else 0)]) + varint(nbytes)
        head += varint(align) if align > 1 else b""
        head += PAD * (-(at + len(head)) % align)
        out += [head, *body]
        at += len(head) + nbytes
    source.check()
    return out


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
                    kept = resource(module.input, module.strings[entry.key], ("", ""), entry)
                    chosen: tuple[int, Blob] | None = (kept.alignment, kept.blob)
                else:
                    chosen = fill(group, entry)
                if chosen is not None:
                    align, blob = chosen
                    head = varint(align) + varint(blob.nbytes)
                    # From the start of the section, which is aligned to the largest of these in the file.
                    added = [head + PAD * (-(at + len(head)) % align), blob]
                    most = max(most, align)
            nbytes = sum(len(each) if isinstance(each, bytes) else each.nbytes for each in added)
            offsets += varint(keys.get((group.key, entry.key), entry.key)) + varint(nbytes) + bytes([entry.kind])
            pieces += added
            at += nbytes
    return bytes(offsets), pieces, at, most
