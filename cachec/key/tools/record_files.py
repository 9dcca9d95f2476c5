"""The files of a RECORD that count in a key, in a form that a new process reads ten times faster.

It follows from the texts of ``RECORD`` and ``entry_points.txt`` alone, and is kept in the store by their content.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from cachec.base.distributions import Distribution, parse_entry_points, parse_record
from cachec.base.hashing import DigestMemory, Hasher, digest_bytes
from cachec.model import MALFORMED_JSON

#: Of fewer bytes a RECORD is read as quickly as what is kept of it.
MAX_CACHED_BYTES = 1 << 16

#: What the installer writes itself: differs between installs of one wheel.
_GENERATED = frozenset(
    {"INSTALLER", "REQUESTED", "direct_url.json", "RECORD", "RECORD.jws", "RECORD.p7s", "uv_cache.json"}
)


class RecordFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file that counts: the name that goes into the digest, where it is from the site folder, its hash and size as
    RECORD has them, and whether it lies in a folder of executables."""

    name: str
    path: str
    hash: str
    size: int = -1
    is_script: bool = False


class Listing(msgspec.Struct, frozen=True, array_like=True):
    """wheel: a digest of what RECORD says of all files but scripts. paths, hashes, sizes: of the files in the site
    folder of which RECORD has both; the first two a line each. others: the rest."""

    wheel: str
    paths: str
    hashes: str
    sizes: tuple[int, ...]
    others: tuple[RecordFile, ...]

    def each_path(self) -> Iterator[str]:
        """Where each of the files is, from the site folder."""
        yield from self.paths.split("\n") if self.paths else ()
        yield from (one.path for one in self.others)


def listing_of(distribution: Distribution, record: bytes, memory: DigestMemory | None) -> Listing:
    """What counts of a distribution. record: what its RECORD says now."""
    folder = os.path.basename(distribution.folder)
    points = distribution.read("entry_points.txt")
    if memory is None or len(record) < MAX_CACHED_BYTES:
        return _build_listing(_counting(folder, record, points))
    hasher = Hasher("listing 2")
    hasher.part("folder", folder.encode("utf-8", "surrogateescape"))
    hasher.part("record", record)
    hasher.part("entry points", points.encode())
    row = f"digest:record:{hasher.digest()}"
    cached = memory.recall(row) or b""
    if cached[:64] == digest_bytes(cached[64:]).encode():  # what is damaged is made again
        with suppress(*MALFORMED_JSON):
            return msgspec.msgpack.decode(cached[64:], type=Listing)
    made = _build_listing(_counting(folder, record, points))
    with suppress(UnicodeEncodeError):  # a name that is no text
        body = msgspec.msgpack.encode(made)
        memory.remember(row, digest_bytes(body).encode() + body)
    return made


def _build_listing(listed: Iterable[RecordFile]) -> Listing:
    rows = sorted(listed, key=lambda one: one.name)
    hasher = Hasher("wheel")
    for one in rows:
        if not one.is_script:
            hasher.part(one.name, f"{one.hash} {one.size}".encode("utf-8", "surrogateescape"))
    plain = [one for one in rows if _is_plain(one)]
    return Listing(
        wheel=hasher.digest(),
        paths="\n".join(one.path for one in plain),
        hashes="\n".join(one.hash for one in plain),
        sizes=tuple(one.size for one in plain),
        others=tuple(one for one in rows if not _is_plain(one)),
    )


def _is_plain(one: RecordFile) -> bool:
    is_inside = one.name == one.path and "/../" not in one.path and not one.is_script
    return is_inside and one.size >= 0 and bool(one.hash) and "\n" not in one.path + one.hash


def _counting(own_folder: str, record: bytes, points: str) -> Iterator[RecordFile]:
    generated = {name for group in ("console_scripts", "gui_scripts") for name in parse_entry_points(points, group)}
    for row in parse_record(record.decode("utf-8", "surrogateescape")):
        folder, _, base = row.path.rpartition("/")
        if base.endswith(".pyc") or (folder == own_folder and base in _GENERATED):
            continue
        is_elsewhere = row.path.startswith(("../", "/"))
        is_script = is_elsewhere and os.path.basename(folder) in ("bin", "Scripts")
        if is_script and base.removesuffix(".exe").removesuffix("-script.py") in generated:
            continue
        name = f"scripts/{base}" if is_script else row.path.replace("../", "") if is_elsewhere else row.path
        yield RecordFile(name, row.path, row.hash, row.size, is_script)
