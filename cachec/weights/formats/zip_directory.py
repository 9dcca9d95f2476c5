"""The directory of a zip archive with uncompressed members, to read them in place (PKWARE's APPNOTE 6.3.10).

    local   "PK\\3\\4", 26 bytes, name, extra field; then the member's bytes
    central "PK\\1\\2" for each member: method, CRC, sizes, name, offset of its local record; what does not fit into
            32 bits is in a zip64 field
    end     "PK\\5\\6": number of members, size and offset of the central directory, comment

Compressed and encrypted members, archives in several parts, overlapping members and repeated names are refused. The
CRC-32 of a member is not computed here, which would read all of it; ``checksums.py`` does, when asked.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from cachec.weights.formats.base import CheckpointFile, refuse_overlaps, text_of

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_MAX_DIRECTORY = 1 << 27
_ZIP64, _ZIP64_COUNT = 0xFFFFFFFF, 0xFFFF
#: A checksum that is stated for each member by itself.
MEMBERS = "crc32:members"

#: The attribute of MS-DOS.
_FOLDER = 0x10
_ENCRYPTED = 0x1 | 0x40 | 0x2000


class Member(NamedTuple):
    """A stored member."""

    name: str
    #: With ``nbytes``: of its bytes in the file.
    offset: int
    nbytes: int
    #: Where its local record begins.
    at: int
    #: CRC-32.
    crc: int


def stated_checksums(file: CheckpointFile, stored: Mapping[str, Member]) -> dict[int, str]:
    """For ``Contents.checksums``: the members have CRC-32s. PyTorch leaves all of them 0 where it computes none."""
    return {file.number: MEMBERS} if any(member.crc for member in stored.values()) else {}


def members(file: CheckpointFile) -> dict[str, Member]:
    """All members by name, folders left out. Raises CheckpointError."""
    count, start, nbytes = _directory(file)
    by_name: dict[str, Member] = {}
    spans: list[tuple[int, int, str]] = []
    at, limit = start, start + nbytes
    for number in range(count):
        if at + _CENTRAL.size > limit:
            raise file.error(f"{count} members expected in the directory, found {number}")
        fields = _CENTRAL.unpack(file.at(at, _CENTRAL.size, "the directory"))
        signature, _, _, flags, method, _, _, crc, packed, size, names, extras, comments, disk, _, mode, local = fields
        what = f"member {number}"
        if signature != b"PK\1\2":
            raise file.error(f"{what}: expected b'PK\\x01\\x02' at offset {at}, found {signature!r}")
        text = file.at(at + _CENTRAL.size, names + extras, "the directory")
        name = _name(file, text[:names], flags, what)
        what = f"member {name!r}"
        size, packed, local = _zip64(file, text[names:], (size, packed, local), what)
        at += _CENTRAL.size + names + extras + comments
        if flags & _ENCRYPTED or disk not in {0, _ZIP64_COUNT}:
            raise file.error(f"{what}: expected a plain member, found an encrypted one or a part of several archives")
        if method != 0 or packed != size:
            raise file.error(
                f"{what}: expected stored bytes, found compressed ones, which can't be mapped; save it uncompressed "
                "(numpy.savez instead of numpy.savez_compressed)"
            )
        if mode & _FOLDER and size:
            raise file.error(f"{what}: expected a file, found a folder with {size} bytes")  # some readers skip them
        if name in by_name:
            raise file.error(f"{what} twice")
        member = _local(file, name, text[:names], local, size, crc)
        if member.offset + size > start:
            raise file.error(
                f"{what}: expected to end before the directory at offset {start}, found {member.offset + size}"
            )
        spans.append((local, member.offset + size, name))
        by_name[name] = member
    if at != limit:
        raise file.error(f"the directory expected to end at offset {limit}, found {at}")
    refuse_overlaps(file, spans, "member")
    return {name: member for name, member in by_name.items() if not name.endswith("/")}


def _directory(file: CheckpointFile) -> tuple[int, int, int]:
    """Number of members, offset and size of the central directory."""
    tail = min(file.size, _END.size + 0xFFFF)
    # Most archives have no comment, so the last bytes alone are the end.
    last = file.at(file.size - min(file.size, _END.size), min(file.size, _END.size), "the end record")
    if len(last) == _END.size and last.startswith(b"PK\5\6") and last.endswith(b"\0\0"):
        at = file.size - _END.size
    else:
        end_at = file.at(file.size - tail, tail, "the end record").rfind(b"PK\5\6")
        at = file.size - tail + end_at
        if end_at < 0 or at + _END.size > file.size:
            raise file.error("expected a zip archive with an end record, found none: it is truncated, or no archive")
    _, disk, first_disk, here, count, nbytes, start, comment = _END.unpack(file.at(at, _END.size, "the end record"))
    if at + _END.size + comment != file.size:
        raise file.error(f"the end record expected to end with the file, found {file.size - at} bytes from it")
    end = at
    locator = file.at(at - _LOCATOR.size, _LOCATOR.size, "the end record") if at >= _LOCATOR.size else b""
    if locator.startswith(b"PK\6\7"):
        _, disk, end64, disks = _LOCATOR.unpack(locator)
        record = file.at(end64, _END64.size, "the zip64 end record")
        signature, length, _, _, disk64, first_disk, here, count, nbytes, start = _END64.unpack(record)
        if signature != b"PK\6\6" or disks > 1 or disk64 != 0 or end64 + 12 + length != at - _LOCATOR.size:
            raise file.error(f"expected a zip64 end record at offset {end64}, found {record[:4]!r}")
        end = end64
    elif _ZIP64 in {nbytes, start} or count == _ZIP64_COUNT:
        raise file.error("expected a zip64 end record, found none")
    if disk != 0 or first_disk != 0 or here != count:
        raise file.error("expected one archive, found a part of several")
    if nbytes > _MAX_DIRECTORY:
        raise file.error(f"the directory expected of at most {_MAX_DIRECTORY} bytes, found {nbytes}")
    if start + nbytes != end:
        raise file.error(f"the directory expected to end at offset {end}, found {start + nbytes}")
    return count, start, nbytes


def _zip64(file: CheckpointFile, extra: bytes, values: tuple[int, int, int], what: str) -> tuple[int, int, int]:
    """Sizes and offset with the values of the zip64 field in place of 0xFFFFFFFF."""
    numbers = list(values)
    is_zip64, at = False, 0
    while at < len(extra):
        if at + 4 > len(extra):
            raise file.error(f"{what}: a malformed extra field")
        tag, length = struct.unpack_from("<HH", extra, at)
        body = extra[at + 4 : at + 4 + length]
        if len(body) != length:
            raise file.error(f"{what}: a malformed extra field")
        at += 4 + length
        if tag != 1:
            continue
        if is_zip64:
            raise file.error(f"{what}: expected one zip64 field, found two")
        is_zip64 = True
        for number, value in enumerate(values):
            if value == _ZIP64:
                if len(body) < 8:
                    raise file.error(f"{what}: a zip64 field that is too short")
                numbers[number] = int.from_bytes(body[:8], "little")
                body = body[8:]
    if not is_zip64 and _ZIP64 in values:
        raise file.error(f"{what}: expected a zip64 field, found none")
    return numbers[0], numbers[1], numbers[2]


def _local(file: CheckpointFile, name: str, raw: bytes, at: int, size: int, crc: int) -> Member:
    what = f"member {name!r}"
    signature, _, flags, method, _, _, _, _, _, names, extras = _LOCAL.unpack(file.at(at, _LOCAL.size, what))
    head = file.at(at + _LOCAL.size, names, what)
    if signature != b"PK\3\4" or head != raw or method != 0 or flags & _ENCRYPTED:
        raise file.error(f"{what}: its record at offset {at} expected to agree with the directory, found another one")
    offset = at + _LOCAL.size + names + extras
    file.within(offset, size, what)
    return Member(name, offset, size, at, crc)


def _name(file: CheckpointFile, raw: bytes, flags: int, what: str) -> str:
    is_utf8 = bool(flags & 0x800)
    name = text_of(file, raw, f"the name of {what}") if is_utf8 else raw.decode("cp437")
    if not name or "\0" in name:
        raise file.error(f"{what}: expected a name, found {name!r}")
    return name
