"""Parameter archives that refer: IRPA files whose entries are ranges of another file, so that no byte is copied.

The format is in ``cachec/weights/formats/irpa.py``; an entry of type 3 names a file in the archive's folder, an offset
and a size. ``cachec.open_weights`` maps such entries; IREE's own parser (3.13) refuses them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

from cachec.errors import LinkError
from cachec.programs.weight_files import Extent, Staging

_HEADER = struct.Struct("<4sHHQQQQ6Q")
_ENTRY = struct.Struct("<QIQQQQQQ")
_EXTERNAL = struct.Struct("<QQQQ")
_EXTERNAL_TYPE = 3
_ALIGNMENT = 16
#: Both, and what aligns the next one.
_SIZE = _ENTRY.size + _EXTERNAL.size
_ROW = struct.Struct(f"{_ENTRY.format}{_EXTERNAL.format[1:]}{-_SIZE % _ALIGNMENT}x")


def write_references(path: str, places: Mapping[str, Extent], *, fsync: bool = False) -> int:
    """Write an archive of these names over ranges of files in its folder; the bytes of the archive.

    Raises LinkError where a file is not in the folder of the archive or below, OSError.
    """
    folder = os.path.realpath(os.path.dirname(path) or os.curdir)
    size, step = _SIZE, _ROW.size
    entries_at = _HEADER.size + -_HEADER.size % _ALIGNMENT
    entries_size = step * (len(places) - 1) + size if places else 0
    names_at = entries_at + entries_size
    rows, texts = [], bytearray()
    paths: dict[str, tuple[int, int]] = {}
    pack = _ROW.pack
    for name in sorted(places):
        place = places[name]
        path_of = place.file.path
        if path_of not in paths:
            paths[path_of] = _add(texts, _relative(folder, path_of))
        named = _add(texts, name.encode())
        rows.append(pack(size, _EXTERNAL_TYPE, 0, *named, 0, 0, 0, *paths[path_of], place.offset, place.nbytes))
    table = b"".join(rows)[:entries_size]
    end = names_at + len(texts)
    segments = (entries_at, len(table), names_at, len(texts), end, 0)
    header = _HEADER.pack(b"IRPA", 0, 0, _HEADER.size, 0, 0, len(places), *segments)
    data = header.ljust(entries_at, b"\0") + table + bytes(texts)
    folder_, name = os.path.split(os.path.abspath(path))
    with Staging(folder_, f".{name}.partial-") as file:
        file.write(data)
        file.replace(os.path.abspath(path), fsync=fsync)
    return len(data)


def _add(texts: bytearray, text: bytes) -> tuple[int, int]:
    at = len(texts)
    texts += text
    return at, len(text)


def _relative(folder: str, path: str) -> bytes:
    real = os.path.realpath(path)
    if not real.startswith(folder.rstrip("/") + "/") or "\\" in real:
        raise LinkError(
            f"{path} expected in {folder} or below, for an archive refers only to files beside it; write the target "
            "there, or leave by_reference out"
        )
    return os.path.relpath(real, folder).encode()
