"""GGUF, versions 2 and 3 (ggml's docs/gguf.md), all numbers little-endian:

    u32     magic "GGUF"
    u32     version
    u64     number of tensors
    u64     number of metadata entries
    entries key (string), u32 type, value
            string: u64 length, UTF-8. array: u32 type, u64 count, values
    infos   name (string), u32 n <= 4, n x u64 dimensions (innermost first), u32 ggml type, u64 offset
    padding to ``general.alignment`` (32)
    data    each tensor at its offset from here, a multiple of the alignment

Dimensions are reversed into row-major order. A tensor of a quantised type is handed out as the bytes of its blocks:
dtype uint8, layout ``gguf:<type>``, and its innermost dimension in bytes. Two tensors may not share bytes (ggml's
loader wants them in sequence). Version 1 and big-endian files are refused.
"""

from __future__ import annotations

import struct

from cachec.errors import CheckpointError
from cachec.weights.formats.base import CheckpointFile, Contents, Opener, refuse_overlaps, size_in_bytes, text_of
from cachec.weights.tensor import Tensor

_HEADER = struct.Struct("<4sIQQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_MAX_TEXT = 65535
_MAX_NESTED = 4
_ALIGNMENT = "general.alignment"

# Value types of metadata.
_FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _BOOL, _STRING, _ARRAY = 4, 7, 8, 9

#: ggml type -> dtype.
PLAIN = {
    0: "float32",
    1: "float16",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    30: "bfloat16",
}
#: ggml type -> (name, elements a block, bytes a block), from ggml's ``type_traits``.
BLOCKS = {
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 40),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    29: ("iq1_m", 256, 56),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
    41: ("q1_0", 128, 18),
}


def read(path: str, opener: Opener) -> Contents:
    """The tensors of a GGUF file. Raises CheckpointError."""
    file = opener.main
    magic, version, tensors, entries = _HEADER.unpack(file.at(0, _HEADER.size, "the header"))
    if magic == b"FUGG" or version & 0xFFFF == 0:
        raise file.error("expected a little-endian GGUF file, found a big-endian one; convert it again")
    if magic != b"GGUF":
        raise file.error(f"expected the magic b'GGUF', found {magic!r}")
    if version not in {2, 3}:
        raise file.error(f"GGUF version expected 2 or 3, found {version}; convert it again with a current gguf")
    cursor = _GgufCursor(file, _HEADER.size)
    # An entry takes at least 13 bytes and a tensor 24: a count that can't be is refused before anything is collected.
    if entries * 13 + tensors * 24 > file.size:
        raise file.error(f"{tensors} tensors and {entries} metadata entries expected to fit into {file.size} bytes")
    alignment = _metadata(cursor, entries)
    infos: dict[str, tuple[int, tuple[int, ...], int, int]] = {}
    for number in range(tensors):
        name = cursor.text(f"the name of tensor {number}", _MAX_TEXT)
        if not name or name in infos:
            raise file.error(f"tensor {number}: expected a name of its own, found {name!r}{' twice' if name else ''}")
        what = f"tensor {name!r}"
        rank = cursor.u32(what)
        if rank > 4:
            raise file.bad(name, "at most 4 dimensions", rank)
        shape = tuple(cursor.u64(what) for _ in range(rank))[::-1]
        infos[name] = (number, shape, cursor.u32(what), cursor.u64(what))
    start = cursor.offset + -cursor.offset % alignment
    placed: dict[str, Tensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, (_, shape, kind, relative) in infos.items():
        tensor = _tensor(file, name, shape, kind, start + relative)
        if relative % alignment:
            raise file.bad(name, f"an offset that is a multiple of {alignment}", relative)
        file.within(tensor.offset, tensor.nbytes, f"tensor {name!r}")
        placed[name] = tensor
        spans.append((tensor.offset, tensor.offset + tensor.nbytes, name))
    refuse_overlaps(file, spans)
    return Contents(placed)


def _tensor(file: CheckpointFile, name: str, shape: tuple[int, ...], kind: int, offset: int) -> Tensor:
    plain = PLAIN.get(kind)
    if plain is not None:
        return Tensor(plain, shape, size_in_bytes(file, name, plain, shape), offset)
    block = BLOCKS.get(kind)
    if block is None:
        raise file.bad(name, f"a ggml type of {sorted(PLAIN | BLOCKS)}", kind)
    label, elements, nbytes = block
    size_in_bytes(file, name, "uint8", shape)  # elements of a legal shape, before it is scaled to bytes
    if not shape or shape[-1] % elements:
        raise file.bad(name, f"an innermost dimension that is a multiple of {elements} ({label})", list(shape))
    stored = (*shape[:-1], shape[-1] // elements * nbytes)
    return Tensor("uint8", stored, size_in_bytes(file, name, "uint8", stored), offset, layout=f"gguf:{label}")


class _GgufCursor:
    """Reads values one after the other."""

    def __init__(self, file: CheckpointFile, offset: int) -> None:
        self.file = file
        self.offset = offset

    def take(self, nbytes: int, what: str) -> bytes:
        data = self.file.at(self.offset, nbytes, what)
        self.offset += nbytes
        return data

    def skip(self, nbytes: int, what: str) -> None:
        self.file.within(self.offset, nbytes, what)
        self.offset += nbytes

    def u32(self, what: str) -> int:
        value: int = _U32.unpack(self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack(self.take(8, what))[0]
        return value

    def text(self, what: str, limit: int) -> str:
        length = self.u64(what)
        if length > limit:
            raise self.file.error(f"{what}: expected at most {limit} bytes, found {length}")
        return text_of(self.file, self.take(length, what), what)

    def flags(self, count: int, what: str) -> None:
        while count:
            part = self.take(min(count, 1 << 16), what)
            if part.translate(None, b"\0\1"):
                raise self.file.error(f"{what}: expected booleans of 0 or 1, found another byte")
            count -= len(part)


def _metadata(cursor: _GgufCursor, entries: int) -> int:
    """Walk the metadata; the alignment."""
    file = cursor.file
    names: set[str] = set()
    alignment = 32
    for number in range(entries):
        key = cursor.text(f"the key of metadata entry {number}", _MAX_TEXT)
        if key in names:
            raise file.error(f"metadata key {key!r} twice")
        names.add(key)
        what = f"metadata {key!r}"
        kind = cursor.u32(what)
        if key == _ALIGNMENT:
            alignment = cursor.u32(what) if kind == _UINT32 else 0
            if alignment <= 0 or alignment & (alignment - 1):
                raise file.error(f"{what}: expected a uint32 that is a power of two, found {alignment} (type {kind})")
        else:
            _skip(cursor, kind, 1, what, 0)
    return alignment


def _skip(cursor: _GgufCursor, kind: int, count: int, what: str, depth: int) -> None:
    """Step over ``count`` values of one type."""
    fixed = _FIXED.get(kind)
    if kind == _BOOL:
        cursor.flags(count, what)
    elif fixed is not None:
        cursor.skip(count * fixed, what)
    elif kind == _STRING:
        _skip_texts(cursor, count, what)
    elif kind == _ARRAY and depth < _MAX_NESTED:
        if count * 12 > cursor.file.size:
            raise _too_many(cursor, count, what)
        for _ in range(count):
            inner, length = cursor.u32(what), cursor.u64(what)
            _skip(cursor, inner, length, what, depth + 1)
    else:
        expected = "a type from 0 to 12" if kind != _ARRAY else f"arrays nested at most {_MAX_NESTED} deep"
        raise cursor.file.error(f"{what}: expected {expected}, found type {kind} at offset {cursor.offset}")


def _skip_texts(cursor: _GgufCursor, count: int, what: str) -> None:
    """Skip strings: a vocabulary has hundreds of thousands, so this loop is short."""
    file, offset, unpack = cursor.file, cursor.offset, _U64.unpack
    if count * 8 > file.size - offset:
        raise _too_many(cursor, count, what)
    for _ in range(count):
        (length,) = unpack(file.at(offset, 8, what))
        offset += 8 + length
        if offset > file.size:
            file.within(offset - length, length, what)
    cursor.offset = offset


def _too_many(cursor: _GgufCursor, count: int, what: str) -> CheckpointError:
    remaining = cursor.file.size - cursor.offset
    return cursor.file.error(f"{what}: {count} values expected within the {remaining} bytes that are left")
