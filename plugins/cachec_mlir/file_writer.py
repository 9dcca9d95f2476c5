"""Writing of files from bytes and blobs, and the results of strip and link."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from cachec.errors import UsageError
from cachec.programs.weight_files import Copier, Extent, Staging, pread_exact
from cachec_mlir.blobs import Blob, Resources, write_at

_KINDS: Final[Mapping[int, str]] = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}


class StripResult(NamedTuple):
    """A module without bytes of weights, and these bytes in place."""

    ir: bytes
    resources: Resources
    #: Names of the resources that were constants, in order.
    lifted: tuple[str, ...] = ()


class LinkResult(NamedTuple):
    """The result of a link."""

    nbytes: int
    #: Names of given weights that the module does not use.
    unused: tuple[str, ...]
    #: Whether MLIR's tools can read it only from a file, because a pipe or memory has a smaller alignment.
    is_file_only: bool = False


#: Part of a file to be written: bytes, or a blob.
Piece = bytes | Blob


def write(target: str | os.PathLike[str], pieces: Iterable[Piece], *, digits: bool = False, fsync: bool = False) -> int:
    """Write a file under a temporary name and rename it; returns its bytes. digits: blobs as hexadecimal text."""
    check_target(target)
    path = os.path.abspath(os.fspath(target))
    folder, name = os.path.split(path)
    with Staging(folder, f".{name}.partial-") as file, Copier() as copier:
        at = 0
        for piece in pieces if digits else _merge(pieces):
            if isinstance(piece, bytes):
                at = write_at(file.fd, piece, at)
            elif digits:
                piece.copy_digits(copier, file.fd, at)
                at += 2 * piece.nbytes
            else:
                piece.copy(copier, file.fd, at)
                at += piece.nbytes
        file.replace(path, fsync=fsync)
    return at


def check_target(target: str | os.PathLike[str]) -> None:
    """Raise UsageError unless a file can be written to ``target`` under a temporary name and then renamed."""
    path = os.path.abspath(os.fspath(target))
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise UsageError(f"{os.fspath(target)}: there is no folder {folder}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{os.fspath(target)}: the folder {folder} can't be written to; choose another")
    if os.path.lexists(path) and not stat.S_ISREG(mode := os.lstat(path).st_mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise UsageError(
            f"{os.fspath(target)} expected to be a file or nothing, found {kind}; write to a file (-o - is stdout)"
        )


def _merge(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Merge pieces that are adjacent in one file, in the same order: one copy of 1 GiB is faster than 2,000 copies."""
    run: Extent | None = None
    gap = b""
    for piece in pieces:
        if isinstance(piece, bytes):
            gap += piece
            continue
        place = None if piece.hexadecimal else piece.place
        if isinstance(place, Extent) and run is not None and _follows(run, gap, place):
            run = msgspec.structs.replace(run, nbytes=place.offset + place.nbytes - run.offset)
        else:
            if run is not None:
                yield Blob(run)
            yield gap
            run = place if isinstance(place, Extent) else None
            if run is None:
                yield piece
        gap = b""
    if run is not None:
        yield Blob(run)
    yield gap


def _follows(run: Extent, gap: bytes, place: Extent) -> bool:
    """Whether ``place`` follows ``run`` in the file, with exactly ``gap`` between them."""
    end = run.offset + run.nbytes
    return (run.fd, end + len(gap)) == (place.fd, place.offset) and pread_exact(run.fd, end, len(gap)) == gap
