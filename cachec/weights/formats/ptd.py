"""ExecuTorch's tensor data: a FlatBuffer with names, types and places, and behind it the bytes.

Source: ``extension/flat_tensor/serialize`` of pytorch/executorch (``flat_tensor.fbs``, ``flat_tensor_header.h``), all
integers little-endian:

    u32     where the root table is
    4 bytes ``FT01``
    header  ``FH01``, u32 its length (40), u64 offset and size of the rest of the FlatBuffer, u64 offset of the first
            segment, u64 bytes of all segments; padded to 48
    tables  FlatTensor {version: u32, segments: [DataSegment {offset, size: u64}],
            named_data: [NamedData {key: string, segment_index: u32, tensor_layout: TensorLayout}]}
            TensorLayout {scalar_type: i8, sizes: [i32], dim_order: [u8]}
    data    the segments, at offsets from the first

Several names may have one segment. What has no layout is bytes of a backend's own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cachec.errors import CheckpointError, UsageError
from cachec.model import ROW_MAJOR, WeightSpec
from cachec.weights.formats.base import (
    MAX_DIMENSIONS,
    MAX_STRUCTURE,
    CheckpointFile,
    Contents,
    Opener,
    Plan,
    refuse_overlaps,
    size_in_bytes,
)
from cachec.weights.tensor import Tensor
from cachec.weights.weight import Weight

#: ``ScalarType`` of ``scalar_type.fbs``; of the packed types, which are no tensors of ours, none.
DTYPES = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    11: "bool",
    15: "bfloat16",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
    25: "float8_e5m2fnuz",
    26: "float8_e4m3fnuz",
    27: "uint16",
    28: "uint32",
    29: "uint64",
}
_NUMBERS = {name: number for number, name in DTYPES.items()}

_MAGIC, _HEADER_MAGIC = b"FT01", b"FH01"
_HEADER = struct.Struct("<4sIQQQQ")
_HEADER_AT, _HEADER_SIZE = 8, 48
_START = _HEADER_AT + _HEADER_SIZE

#: What ExecuTorch's own writer aligns segments to.
_ALIGNMENT = 128
_MAX_SIZE = 2**31 - 1

#: Tables in files that are written here: u16 size of the vtable and of the table, then the places of the fields.
_ROOT, _SEGMENT, _NAMED, _LAYOUT = (10, 16, 4, 8, 12), (8, 24, 8, 16), (10, 16, 4, 8, 12), (10, 16, 12, 4, 8)


class Head(NamedTuple):
    """The first bytes of a file; where each segment goes, by the name of what it holds; the size of the file."""

    data: bytes
    places: dict[str, int]
    size: int


def plan(path: str, weights: Sequence[Weight], metadata: Mapping[str, str]) -> Plan:
    """A file with a segment a weight. Raises UsageError for what the format has no place for."""
    if metadata:
        raise UsageError(f"save: a .ptd has no place for metadata ({', '.join(sorted(metadata))})")
    by_name = {weight.name: weight for weight in weights}
    head = head_of({name: name for name in by_name}, {name: weight.spec for name, weight in by_name.items()})
    return Plan(path, head.data, tuple((by_name[name], at) for name, at in head.places.items()), head.size)


def head_of(keys: Mapping[str, str], specs: Mapping[str, WeightSpec]) -> Head:
    """Return the head of a file with the entries ``keys``. Several of them may name the same weight.

    Raises UsageError as ``plan``.
    """
    names = sorted(set(keys.values()))
    places, end = {}, 0
    for name in names:
        _check(specs[name])
        places[name] = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = places[name] + specs[name].nbytes
    tables = _tables(keys, [(places[name], specs[name].nbytes) for name in names], names, specs)
    base = -(-len(tables) // _ALIGNMENT) * _ALIGNMENT
    header = _HEADER.pack(_HEADER_MAGIC, _HEADER.size, _HEADER_SIZE, len(tables) - _HEADER_SIZE, base, end)
    tables[_HEADER_AT : _HEADER_AT + len(header)] = header
    data = bytes(tables) + bytes(base - len(tables))
    return Head(data, {name: base + at for name, at in places.items()}, base + end)


def _check(spec: WeightSpec) -> None:
    if spec.dtype not in _NUMBERS or spec.layout != ROW_MAJOR:
        raise UsageError(f"save: weight {spec.name!r}: a .ptd has no {spec.dtype}, {spec.layout}")
    if any(size > _MAX_SIZE for size in spec.shape) or len(spec.shape) > MAX_DIMENSIONS:
        raise UsageError(f"save: weight {spec.name!r}: a .ptd has no shape {list(spec.shape)}")


def _tables(
    keys: Mapping[str, str], segments: Sequence[tuple[int, int]], names: Sequence[str], specs: Mapping[str, WeightSpec]
) -> bytearray:
    """The FlatBuffer with room for the header: each table in front of what it points to."""
    out = bytearray(_START)
    shapes: dict[tuple[int, ...], int] = {}
    for fields in (_ROOT, _SEGMENT, _NAMED, _LAYOUT):
        shapes[fields] = len(out)
        out += struct.pack(f"<{len(fields)}H", *fields)

    def align(to: int) -> None:
        out.extend(bytes(-len(out) % to))

    def table(fields: tuple[int, ...], to: int = 4) -> int:
        align(to)
        at = len(out)
        out.extend(struct.pack("<i", at - shapes[fields]) + bytes(fields[1] - 4))
        return at

    def vector(data: bytes, count: int) -> int:
        align(4)
        out.extend(struct.pack("<I", count) + data)
        return len(out) - len(data) - 4

    def points(at: int, to: int) -> None:
        struct.pack_into("<I", out, at, to - at)

    root = table(_ROOT)
    struct.pack_into("<I4s", out, 0, root, _MAGIC)
    rows = vector(bytes(4 * len(segments)), len(segments))
    points(root + 8, rows)
    named = vector(bytes(4 * len(keys)), len(keys))
    points(root + 12, named)
    for number, (offset, nbytes) in enumerate(segments):
        at = table(_SEGMENT, 8)
        struct.pack_into("<QQ", out, at + 8, offset, nbytes)
        points(rows + 4 + 4 * number, at)
    indices = {name: number for number, name in enumerate(names)}
    for number, key in enumerate(sorted(keys)):
        spec = specs[keys[key]]
        at, layout = table(_NAMED), table(_LAYOUT)
        points(named + 4 + 4 * number, at)
        struct.pack_into("<I", out, at + 8, indices[keys[key]])
        points(at + 12, layout)
        struct.pack_into("<b", out, layout + 12, _NUMBERS[spec.dtype])
        rank = len(spec.shape)
        points(layout + 4, vector(struct.pack(f"<{rank}i", *spec.shape), rank))
        points(layout + 8, vector(bytes(range(rank)), rank))
        text = key.encode()
        points(at + 4, vector(text + b"\0", len(text)))
    align(16)
    return out


def read(path: str, opener: Opener) -> Contents:
    """The tensors of a file. Raises CheckpointError."""
    file = opener.main
    start = file.at(0, _START, "the header")
    magic, length, offset, size, base, total = _HEADER.unpack_from(start, _HEADER_AT)
    if start[4:8] != _MAGIC or magic != _HEADER_MAGIC or length < _HEADER.size or offset < _HEADER_SIZE:
        raise file.error(f"expected {_MAGIC!r} and a header {_HEADER_MAGIC!r}, found {start[4:8]!r} and {magic!r}")
    end = offset + size
    if end > MAX_STRUCTURE or base < end:
        raise file.error(f"expected the tables before the data and below {MAX_STRUCTURE} bytes, found {end} and {base}")
    file.within(base, total, "the data")
    found = _FlatBuffer(file, file.at(0, end, "the tables"))
    root = found.table(found.number("<I", 0))
    if version := root.number(0, "<I"):
        raise file.error(f"version expected 0, found {version}")
    segments = []
    for row in root.tables(1):
        begin, nbytes = row.number(0, "<Q"), row.number(1, "<Q")
        if begin + nbytes > total:
            raise file.error(f"a segment expected within {total} bytes, found {nbytes} at {begin}")
        segments.append((base + begin, nbytes))
    tensors: dict[str, Tensor] = {}
    for row in root.tables(2):
        name, index = row.text(0), row.number(1, "<I")
        if not name or name in tensors:
            raise file.error(f"expected tensors with names of their own, found {name!r} twice or empty")
        if index >= len(segments):
            raise file.bad(name, f"one of {len(segments)} segments", index)
        tensors[name] = _tensor(file, name, row.within(2), *segments[index])
    # One segment may have several names; two segments may not overlap.
    refuse_overlaps(file, sorted({(at, at + size, f"segment at {at}") for at, size in segments if size}))
    return Contents(tensors)


def _tensor(file: CheckpointFile, name: str, layout: _Table | None, at: int, nbytes: int) -> Tensor:
    if layout is None:
        return Tensor("uint8", (nbytes,), nbytes, at)
    number, shape = layout.number(0, "<b"), layout.numbers(1, "i")
    if number not in DTYPES:
        raise file.bad(name, f"a scalar type of {sorted(DTYPES)}", number)
    if len(shape) > MAX_DIMENSIONS or min(shape, default=0) < 0:
        raise file.bad(name, f"at most {MAX_DIMENSIONS} sizes from 0", list(shape))
    order = layout.numbers(2, "B")
    if order != tuple(range(len(shape))):
        raise file.bad(name, "dimensions in their order (row-major)", list(order))
    size = size_in_bytes(file, name, DTYPES[number], shape)
    if size != nbytes:
        raise file.bad(name, f"{size} bytes for {DTYPES[number]} of shape {list(shape)}", nbytes)
    return Tensor(DTYPES[number], shape, nbytes, at)


class _FlatBuffer:
    """The tables of a file, each look within its bytes."""

    def __init__(self, file: CheckpointFile, data: bytes) -> None:
        self.file = file
        self.data = data

    def number(self, kind: str, at: int) -> int:
        return self.numbers(kind, at)[0]

    def numbers(self, kind: str, at: int) -> tuple[int, ...]:
        try:
            return struct.unpack_from(kind, self.data, at) if at >= 0 else ()
        except struct.error as error:
            raise self.out_of_bounds(at) from error

    def out_of_bounds(self, at: int) -> CheckpointError:
        return self.file.error(f"expected tables within {len(self.data)} bytes, found one that leads to {at}")

    def table(self, at: int) -> _Table:
        return _Table(self, at)


class _Table:
    """One table: its fields by number; what is not there is 0, or empty."""

    def __init__(self, tables: _FlatBuffer, at: int) -> None:
        vtable = at - tables.number("<i", at)
        if vtable < 0:
            raise tables.out_of_bounds(vtable)
        size, self._size = tables.numbers("<HH", vtable)
        if size < 4 or size % 2:
            raise tables.out_of_bounds(vtable)
        self._tables, self._at = tables, at
        self._fields = tables.numbers(f"<{size // 2 - 2}H", vtable + 4)

    def _place(self, number: int, nbytes: int) -> int | None:
        field = self._fields[number] if number < len(self._fields) else 0
        if not field:
            return None
        if not 4 <= field <= self._size - nbytes:
            raise self._tables.out_of_bounds(self._at + field)
        return self._at + field

    def number(self, number: int, kind: str) -> int:
        place = self._place(number, struct.calcsize(kind))
        return 0 if place is None else self._tables.number(kind, place)

    def _target(self, number: int) -> int | None:
        place = self._place(number, 4)
        return None if place is None else place + self._tables.number("<I", place)

    def within(self, number: int) -> _Table | None:
        target = self._target(number)
        return None if target is None else _Table(self._tables, target)

    def numbers(self, number: int, kind: str) -> tuple[int, ...]:
        """A vector of numbers."""
        target = self._target(number)
        if target is None:
            return ()
        count = self._tables.number("<I", target)
        if count * struct.calcsize(kind) > len(self._tables.data):
            raise self._tables.out_of_bounds(target + count)
        return self._tables.numbers(f"<{count}{kind}", target + 4)

    def tables(self, number: int) -> list[_Table]:
        """A vector of tables."""
        target = self._target(number)
        if target is None:
            return []
        places = self.numbers(number, "I")
        return [_Table(self._tables, target + 4 + 4 * index + each) for index, each in enumerate(places)]

    def text(self, number: int) -> str:
        data = bytes(self.numbers(number, "B"))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self._tables.file.error(f"expected names in UTF-8, found {data[:40]!r}") from error
