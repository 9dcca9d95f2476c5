"""IRPA, IREE's parameter archive, version 0.0 (iree/schemas/parameter_archive.h), all numbers little-endian:

    header   magic "IRPA", u16 major, u16 minor, u64 header size (88), u64 offset of the next header or 0, u64 flags,
             u64 number of entries, and three segments {u64 offset, u64 length}: entries, metadata, storage
    entry    u64 size, u32 type, u64 flags, name {u64 offset, u64 length}, metadata {...}, u64 minimum alignment;
             the next one begins at a multiple of 16. By type:
             0 skip      nothing more
             1 splat     u64 length, 16 bytes pattern, u8 pattern length (1, 2, 4, 8 or 16)
             2 data      {u64 offset, u64 length} in the storage segment
             3 external  path {offset, length} in the metadata segment, {u64 offset, u64 length} in that file

Offsets of segments count from their header, names and paths from the metadata segment. The format knows no dtype and
no shape: tensors are uint8 vectors, to be typed by ``open_weights(specs=)``. Entries may share bytes of the storage.
IREE's own parser refuses external entries; here their file is looked for in the folder of the archive.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cachec.errors import UsageError
from cachec.weights.formats.base import CheckpointFile, Contents, Opener, Plan, Value, size_in_bytes, text_of
from cachec.weights.tensor import Tensor
from cachec.weights.weight import Weight

_HEADER = struct.Struct("<4sHHQQQQ6Q")
_ENTRY = struct.Struct("<QIQQQQQQ")
_SPLAT = struct.Struct("<Q16sB")
_DATA = struct.Struct("<QQ")
_DATA_ENTRY = struct.Struct("<QIQQQQQQQQ")
_EXTERNAL = struct.Struct("<QQQQ")
_SKIP_TYPE, _SPLAT_TYPE, _DATA_TYPE, _EXTERNAL_TYPE = range(4)
_ENTRY_ALIGNMENT = 16
_DATA_ALIGNMENT = 64
_FILE_ALIGNMENT = 4096
_MAX_NAME = 1 << 16
_MAX_ARCHIVES = 4096


class _Segment(NamedTuple):
    """A range of the file, by absolute offset."""

    name: str
    offset: int
    nbytes: int

    def place(self, file: CheckpointFile, offset: int, nbytes: int, what: str) -> int:
        """The absolute offset of a range within. Raises CheckpointError unless it is within."""
        if nbytes and offset + nbytes > self.nbytes:
            raise file.error(
                f"{what} expected within the {self.nbytes} bytes of the {self.name} segment, found {nbytes} bytes at "
                f"offset {offset}"
            )
        return self.offset + offset if nbytes else self.offset


def read(path: str, opener: Opener) -> Contents:
    """The entries of all archives of the file. Raises CheckpointError."""
    file = opener.main
    archive = _Archive(opener)
    base, archives = 0, 0
    while True:
        following = _read_archive(file, base, archive)
        archives += 1
        if following == 0:
            return Contents(archive.tensors, values=tuple(archive.values), typed=False)
        if archives >= _MAX_ARCHIVES:
            raise file.error(f"expected at most {_MAX_ARCHIVES} linked archives, found more")
        base += following  # offsets are positive, so the chain ends at the end of the file


class _Archive:
    """What was read so far."""

    def __init__(self, opener: Opener) -> None:
        self.opener = opener
        self.tensors: dict[str, Tensor] = {}
        self.values: list[Value] = []


def _read_archive(file: CheckpointFile, base: int, archive: _Archive) -> int:
    """Read one archive; the offset of the next header from this one, 0 if it is the last."""
    fields = _HEADER.unpack(file.at(base, _HEADER.size, "the header"))
    magic, major, minor, size, following, _flags, count = fields[:7]
    if magic != b"IRPA":
        raise file.error(f"expected the magic b'IRPA' at offset {base}, found {magic!r}")
    if (major, minor) != (0, 0) or size != _HEADER.size:
        raise file.error(
            f"expected IRPA version 0.0 with a header of {_HEADER.size} bytes, found {major}.{minor} with {size}"
        )
    if following % 16:
        raise file.error(f"the next header expected at a multiple of 16 from offset {base}, found {following}")
    segments = []
    for name, offset, nbytes in zip(("entry", "metadata", "storage"), fields[7::2], fields[8::2], strict=True):
        if nbytes:
            file.within(base + offset, nbytes, f"the {name} segment")
        segments.append(_Segment(name, base + offset, nbytes))
    entries, metadata, storage = segments
    if count * _ENTRY.size > entries.nbytes:
        raise file.error(f"{count} entries expected within the {entries.nbytes} bytes of the entry segment")
    at = 0
    for number in range(count):
        at += _read_entry(file, base, number, at, (entries, metadata, storage), archive)
    return int(following)


def _read_entry(
    file: CheckpointFile,
    base: int,
    number: int,
    at: int,
    segments: tuple[_Segment, _Segment, _Segment],
    archive: _Archive,
) -> int:
    """Read the entry ``at`` bytes into the table; the bytes up to the next one."""
    entries, metadata, storage = segments
    what = f"entry {number}"
    head = file.at(entries.place(file, at, _ENTRY.size, what), _ENTRY.size, what)
    size, kind, _flags, name_at, name_size, info_at, info_size, alignment = _ENTRY.unpack(head)
    bodies = {_SKIP_TYPE: 0, _SPLAT_TYPE: _SPLAT.size, _DATA_TYPE: _DATA.size, _EXTERNAL_TYPE: _EXTERNAL.size}
    if kind not in bodies:
        raise file.error(f"{what}: expected a type from 0 to 3, found {kind}")
    if size < _ENTRY.size + bodies[kind]:
        raise file.error(f"{what}: expected at least {_ENTRY.size + bodies[kind]} bytes, found {size}")
    body_at = entries.place(file, at, size, what) + _ENTRY.size
    if name_size > _MAX_NAME:
        raise file.error(f"{what}: a name expected of at most {_MAX_NAME} bytes, found {name_size}")
    name_place = metadata.place(file, name_at, name_size, f"the name of {what}")
    metadata.place(file, info_at, info_size, f"the metadata of {what}")
    step = size + -size % 16
    if kind == _SKIP_TYPE:
        return int(step)
    name = text_of(file, file.at(name_place, name_size, f"the name of {what}"), f"the name of {what}")
    if not name or name in archive.tensors:
        raise file.error(f"{what}: expected a name of its own, found {name!r}{' twice' if name else ''}")
    body = file.at(body_at, bodies[kind], f"tensor {name!r}")
    if kind == _SPLAT_TYPE:
        archive.tensors[name] = _splat(file, name, body, archive.values)
    elif kind == _DATA_TYPE:
        offset, nbytes = _DATA.unpack(body)
        place = storage.place(file, offset, nbytes, f"tensor {name!r}")
        if alignment & (alignment - 1):
            raise file.bad(name, "a minimum alignment that is a power of two", alignment)
        if nbytes and alignment and (place - base) % alignment:
            raise file.bad(name, f"an offset that is a multiple of {alignment} from its header", place - base)
        archive.tensors[name] = _vector(file, name, nbytes, place)
    else:
        path_at, path_size, offset, nbytes = _EXTERNAL.unpack(body)
        if path_size > _MAX_NAME:
            raise file.bad(name, f"a path of at most {_MAX_NAME} bytes", path_size)
        path_place = metadata.place(file, path_at, path_size, f"the path of tensor {name!r}")
        raw = file.at(path_place, path_size, f"the path of tensor {name!r}")
        other = archive.opener.open_sibling(text_of(file, raw, f"the path of tensor {name!r}"), f"tensor {name!r}")
        if offset + nbytes > other.size:
            raise file.bad(name, f"its bytes within the {other.size} of {other.path}", f"{nbytes} at offset {offset}")
        archive.tensors[name] = _vector(file, name, nbytes, offset, other.number)
    return int(step)


def _splat(file: CheckpointFile, name: str, body: bytes, values: list[Value]) -> Tensor:
    nbytes, pattern, length = _SPLAT.unpack(body)
    if length not in {1, 2, 4, 8, 16}:
        raise file.bad(name, "a pattern of 1, 2, 4, 8 or 16 bytes", length)
    if nbytes % length:
        raise file.bad(name, f"a length that is a multiple of its pattern's {length} bytes", nbytes)
    tensor = _vector(file, name, nbytes, 0, -1 - len(values))
    values.append(Value(pattern[:length], nbytes, file.number))
    return tensor


def _vector(file: CheckpointFile, name: str, nbytes: int, offset: int, number: int = 0) -> Tensor:
    return Tensor("uint8", (nbytes,), size_in_bytes(file, name, "uint8", (nbytes,)), offset, number)


def plan(path: str, weights: Sequence[Weight], metadata: Mapping[str, str]) -> Plan:
    """An archive with the bytes that IREE's own writer makes: header at 0, entries at 96, each aligned to 16, names
    without gaps, storage and every tensor aligned to 64, the file filled up to a multiple of 4096.

    Raises UsageError for metadata, which the format has no place for.
    """
    if metadata:
        raise UsageError("save: an IRPA archive keeps no metadata; leave it out, or use safetensors")
    names = [weight.name.encode() for weight in weights]
    size = _DATA_ENTRY.size
    step = _up(size, _ENTRY_ALIGNMENT)
    entries_at = _up(_HEADER.size, _ENTRY_ALIGNMENT)
    # The table ends with its last entry, the names begin right there.
    entries_size = step * (len(weights) - 1) + size if weights else 0
    names_at = entries_at + entries_size
    names_size = sum(map(len, names))
    storage_at = _up(names_at + names_size, _DATA_ALIGNMENT)
    table = bytearray()
    places: list[tuple[Weight, int]] = []
    name_at = end = 0
    for weight, name in zip(weights, names, strict=True):
        begin = _up(end, _DATA_ALIGNMENT)
        end = begin + weight.nbytes
        entry = (size, _DATA_TYPE, 0, name_at, len(name), 0, 0, _DATA_ALIGNMENT, begin, weight.nbytes)
        table += bytes(-len(table) % _ENTRY_ALIGNMENT) + _DATA_ENTRY.pack(*entry)
        name_at += len(name)
        places.append((weight, storage_at + begin))
    segments = (entries_at, entries_size, names_at, names_size, storage_at, end)
    header = _HEADER.pack(b"IRPA", 0, 0, _HEADER.size, 0, 0, len(weights), *segments)
    head = header.ljust(entries_at, b"\0") + bytes(table) + b"".join(names)
    return Plan(path, head, tuple(places), _up(storage_at + end, _FILE_ALIGNMENT))


def _up(offset: int, alignment: int) -> int:
    return offset + -offset % alignment
