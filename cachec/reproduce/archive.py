"""The zip of a reproducer: the same bytes for the same contents, and nothing believed of one that comes from outside.

Written with zipfile (PKWARE's APPNOTE 6.3.10): members in order of their names, dated 1980-01-01, deflated, mode 0600.
Read in full into memory, within the limits below; nothing is written to disk here, and nothing is run.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Collection, Mapping
from io import BytesIO

from cachec.base import fsio
from cachec.errors import ReproducerError

#: What an archive may be: bytes of the file, members, bytes of its directory.
MAX_FILE = 2 << 30
MAX_MEMBERS = 4096
MAX_DIRECTORY = 4 << 20
#: All members unpacked: so many bytes, and so many times the file (weights hardly pack).
FREE_TOTAL = 256 << 20
MAX_TIMES = 4
#: Unpacked over packed bytes of a member that is larger than ``FREE``. Deflate itself ends at 1,032.
MAX_RATIO = 200
FREE = 1 << 20

_END = struct.Struct("<4s4H2IH")
_DATE = (1980, 1, 1, 0, 0, 0)
_STEP = 1 << 20
_ENCRYPTED = 0x1 | 0x40 | 0x2000
#: What zipfile raises for an archive that is malformed.
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OverflowError,
)
_DRIVE = re.compile(r"[A-Za-z]:")


def write_archive(members: Mapping[str, bytes]) -> bytes:
    """The bytes of the archive. What packs so well that it would look like a bomb is stored as it is."""
    data, dense = _compress_members(members, frozenset())
    if not dense and sum(map(len, members.values())) > FREE_TOTAL + MAX_TIMES * len(data):
        dense = {name for name, content in members.items() if len(content) > FREE}
    return _compress_members(members, dense)[0] if dense else data


def _compress_members(members: Mapping[str, bytes], stored: Collection[str]) -> tuple[bytes, set[str]]:
    """Return the archive, and the names of members with a too high ratio."""
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system = 3  # Unix: the mode is in the upper half of the attributes
            info.external_attr = (stat.S_IFREG | 0o600) << 16
            info.compress_type = zipfile.ZIP_STORED if name in stored else zipfile.ZIP_DEFLATED
            archive.writestr(info, members[name], compresslevel=9)
    return out.getvalue(), {info.filename for info in archive.infolist() if _is_dense(info)}


def _is_dense(info: zipfile.ZipInfo) -> bool:
    return info.file_size > FREE and info.file_size > MAX_RATIO * info.compress_size


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file: all of it, or nothing. Raises OSError; ReproducerError where something else is there."""
    target = os.path.abspath(os.fspath(path))
    if os.path.lexists(target) and not stat.S_ISREG(os.lstat(target).st_mode):
        raise ReproducerError(f"{target} expected to be a file or nothing, found something else")
    folder, name = os.path.split(target)
    with fsio.Staging(folder, f".{name}.partial-") as staged:
        staged.write(data)
        staged.commit(target, mode=0o600, fsync=False)


def read_archive(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """The members by name, all of them checked. Raises ReproducerError (names the member), OSError."""
    fd = fsio.open_read(path)
    with os.fdopen(fd, "rb") as file:
        label = os.fspath(path)
        size = os.fstat(fd).st_size
        _check_end(fd, size, label)
        try:
            with zipfile.ZipFile(file) as archive:
                return _read(archive, size, label)
        except _UNREADABLE as error:
            raise ReproducerError(f"{label}: no zip archive that can be read: {error}; get the file again") from error


def _check_end(fd: int, size: int, label: str) -> None:
    """Check the end record before zipfile reads the whole directory."""
    if size > MAX_FILE:
        raise ReproducerError(f"{label}: at most {MAX_FILE} bytes expected, found {size}")
    if size < _END.size:
        raise ReproducerError(f"{label}: a zip archive expected, found {size} bytes")
    tail = fsio.pread_exact(fd, max(0, size - _END.size - 0xFFFF), min(size, _END.size + 0xFFFF))
    at = tail.rfind(b"PK\5\6")
    if at < 0 or at + _END.size > len(tail):
        raise ReproducerError(f"{label}: a zip archive expected, found no end record: cut short, or another file")
    _, disk, first, here, count, nbytes, _, _ = _END.unpack_from(tail, at)
    if disk or first or here != count:
        raise ReproducerError(f"{label}: one archive expected, found a part of several")
    if count > MAX_MEMBERS or nbytes > MAX_DIRECTORY:
        raise ReproducerError(
            f"{label}: at most {MAX_MEMBERS} members in {MAX_DIRECTORY} bytes of directory expected, "
            f"found {count} in {nbytes}"
        )


def _read(archive: zipfile.ZipFile, size: int, label: str) -> dict[str, bytes]:
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise ReproducerError(f"{label}: at most {MAX_MEMBERS} members expected, found {len(infos)}")
    names: set[str] = set()
    for info in infos:
        _check(info, label)
        if info.filename.casefold() in names:
            raise ReproducerError(f"{label}: member {info.filename!r} expected once, found again")
        names.add(info.filename.casefold())
    for name in names:
        parts = name.split("/")
        if any("/".join(parts[:end]) in names for end in range(1, len(parts))):
            raise ReproducerError(f"{label}: member {name!r} lies in one that is a file")
    total, stored = sum(info.file_size for info in infos), sum(info.compress_size for info in infos)
    most = FREE_TOTAL + MAX_TIMES * size
    if total > most or stored > size:
        raise ReproducerError(
            f"{label}: members of at most {most} bytes, packed into less than the file, expected; "
            f"found {total} bytes packed into {stored}"
        )
    return {info.filename: _content(archive, info, label) for info in infos}


def _check(info: zipfile.ZipInfo, label: str) -> None:
    name, what = info.filename, f"{label}: member {info.filename!r}"
    parts = name.split("/")
    if info.orig_filename != name or name.startswith("/") or "\\" in name or "\0" in name or _DRIVE.match(name):
        raise ReproducerError(f"{what}: a relative name with / between its parts expected")
    if any(part in {"", ".", ".."} for part in parts) or not name.isprintable():
        raise ReproducerError(f"{what}: a plain name of a file inside the archive expected")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in {0, stat.S_IFREG}:
        raise ReproducerError(f"{what}: a regular file expected, found a link or a special file")
    if info.flag_bits & _ENCRYPTED:
        raise ReproducerError(f"{what}: a plain member expected, found an encrypted one")
    if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ReproducerError(f"{what}: a stored or deflated member expected, found method {info.compress_type}")
    if _is_dense(info):
        raise ReproducerError(
            f"{what}: a ratio of at most {MAX_RATIO} expected, found {info.compress_size} bytes that unpack to "
            f"{info.file_size}"
        )


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, label: str) -> bytes:
    """The bytes; never more than the directory states, whatever the member holds. zipfile checks the CRC at the end."""
    pieces: list[bytes] = []
    remaining = info.file_size
    with archive.open(info) as member:
        while piece := member.read(min(_STEP, remaining + 1)):
            remaining -= len(piece)
            if remaining < 0:
                break
            pieces.append(piece)
    if remaining:
        raise ReproducerError(
            f"{label}: member {info.filename!r}: {info.file_size} bytes expected, found another number"
        )
    return b"".join(pieces)
