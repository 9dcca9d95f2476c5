"""Checksums that a checkpoint states of its own files: the SHA1 of ONNX external data, the MD5 of TVM's shards, the
CRC-32 of each member of numpy's .npz and PyTorch's .pt.

They are computed on request only (``cachec weights verify``), because that reads every byte of the files.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from cachec.base import fsio
from cachec.base.hashing import digest_by
from cachec.errors import CheckpointError, WeightsChanged
from cachec.weights.formats.base import CheckpointFile
from cachec.weights.formats.zip_directory import MEMBERS, members
from cachec.weights.handles import Handles
from cachec.weights.io.copying import Progress
from cachec.weights.sources import FileSource, OpenedFile


class Damage(NamedTuple):
    """A file that is not what it should be."""

    path: str
    #: The weights that need it.
    names: tuple[str, ...]
    detail: str


class ChecksumReport(NamedTuple):
    """checksums: how many files stated one, and were read. damages: what among them does not have it: a file, or a
    member of an archive.
    """

    checksums: int
    damages: tuple[Damage, ...]


class WeightPlace(NamedTuple):
    """The place of a weight: the number of its file, and its bytes there."""

    name: str
    file: int
    offset: int
    nbytes: int


class _Difference(NamedTuple):
    """What is wrong with the bytes ``[begin, end)`` of a file."""

    detail: str
    begin: int
    end: int


def verify(weights: Handles, progress: Progress | None = None) -> ChecksumReport:
    """Compute the checksums that the files of an opened checkpoint state; a file without one is not read.

    progress: called with bytes done and bytes in all.
    """
    source = weights.source
    files = source.files if isinstance(source, FileSource) else ()
    placed = [WeightPlace(name, each.file, each.offset, each.nbytes) for name, each in weights.layout.tensors.items()]
    return verify_files(files, placed, progress)


def verify_files(
    files: Sequence[OpenedFile], placed: Sequence[WeightPlace], progress: Progress | None = None
) -> ChecksumReport:
    """Compute the checksums that these files state. placed: the weights, to name those with wrong bytes."""
    stated = [(number, file) for number, file in enumerate(files) if file.checksum]
    total, done = sum(file.identity.size for _, file in stated), 0
    damages = []
    for number, file in stated:
        for detail, begin, end in _differences(file, partial(_advance, progress, done, total)):
            names = tuple(
                each.name
                for each in placed
                if each.file == number and begin <= each.offset and each.offset + each.nbytes <= end
            )
            damages.append(Damage(file.path, names, detail))
        done += file.identity.size
    return ChecksumReport(len(stated), tuple(damages))


def _advance(progress: Progress | None, before: int, total: int, done: int) -> None:
    if progress is not None:
        progress(before + done, total)


def _differences(file: OpenedFile, advance: Callable[[int], None]) -> list[_Difference]:
    """How the file differs from the checksum that it states; empty where it does not."""
    compare = _members if file.checksum == MEMBERS else _whole
    size = file.identity.size
    try:
        fd = fsio.open_read(file.path)
    except OSError as error:
        return [_Difference(f"can't be opened any more: {error.strerror}", 0, size)]
    try:
        if not file.same(fsio.identity(fd)):
            return [_Difference("changed after it was opened", 0, size)]
        differences = list(compare(file, fd, advance))
        if not file.same(fsio.identity(fd)):
            return [_Difference("changed while it was read", 0, size)]
    except (EOFError, WeightsChanged):
        return [_Difference("became shorter while it was read", 0, size)]
    finally:
        os.close(fd)
    return differences


def _whole(file: OpenedFile, fd: int, advance: Callable[[int], None]) -> Iterator[_Difference]:
    algorithm, _, expected = file.checksum.partition(":")
    size = file.identity.size
    digest = digest_by(algorithm, fd, size, advance)
    if digest != expected.lower():
        yield _Difference(f"{algorithm} expected {expected}, found {digest}", 0, size)


def _members(file: OpenedFile, fd: int, advance: Callable[[int], None]) -> Iterator[_Difference]:
    """The members of a zip archive by the CRC-32 that its directory states of each."""
    size = file.identity.size
    directory = CheckpointFile(f"/proc/self/fd/{fd}", 0, lambda *_: False)  # the open file
    directory.path = file.path
    try:
        stored = sorted(members(directory).values(), key=lambda member: member.offset)
    except CheckpointError as error:
        yield _Difference(str(error), 0, size)
        return
    finally:
        directory.close()
    for member in stored:
        checksum, done = 0, member.offset
        for chunk in fsio.pread_chunks(fd, member.offset, member.nbytes):
            checksum = zlib.crc32(chunk, checksum)
            done += len(chunk)
            advance(done)
        if checksum != member.crc:
            yield _Difference(
                f"member {member.name!r}: crc32 expected {member.crc:08x}, found {checksum:08x}",
                member.offset,
                member.offset + member.nbytes,
            )
    advance(size)
