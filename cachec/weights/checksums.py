"""Checksums that a checkpoint states of its own files: the SHA1 of ONNX external data, the MD5 of TVM's shards.

They are computed when somebody asks for it (``cachec weights verify``), for that reads every byte of the files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from cachec import fsio
from cachec.weights.copying import Progress
from cachec.weights.sets import WeightSet
from cachec.weights.sources import FileSource, OpenedFile


class Damage(NamedTuple):
    """A file that is not what it should be. names: the weights that need it."""

    path: str
    names: tuple[str, ...]
    detail: str


class Verified(NamedTuple):
    """checksums: how many files stated one, and were read. damages: those among them that do not have it."""

    checksums: int
    damages: tuple[Damage, ...]


def verify(weights: WeightSet, progress: Progress | None = None) -> Verified:
    """Compute the checksums that the files of an opened checkpoint state; a file without one is not read.

    progress: called with bytes done and bytes in all.
    """
    source = weights.source
    files = source.files if isinstance(source, FileSource) else ()
    tensors = weights.layout.tensors.items()
    return verify_files(
        files, lambda number: tuple(name for name, tensor in tensors if tensor.file == number), progress
    )


def verify_files(
    files: Sequence[OpenedFile], names: Callable[[int], tuple[str, ...]], progress: Progress | None = None
) -> Verified:
    """Compute the checksums that these files state. names: the weights in the file of a number."""
    stated = [(number, file) for number, file in enumerate(files) if file.checksum]
    total, done = sum(file.identity.size for _, file in stated), 0
    damages = []
    for number, file in stated:
        detail = _difference(file, None if progress is None else partial(_advance, progress, done, total))
        if detail:
            damages.append(Damage(file.path, names(number), detail))
        done += file.identity.size
    return Verified(len(stated), tuple(damages))


def _advance(progress: Progress, before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _difference(file: OpenedFile, advance: Callable[[int], None] | None) -> str:
    """How the file differs from the checksum that it states; empty where it does not."""
    algorithm, _, expected = file.checksum.partition(":")
    hasher = hashlib.new(algorithm, usedforsecurity=False)
    try:
        fd = fsio.open_read(file.path)
    except OSError as error:
        return f"can't be opened any more: {error.strerror}"
    try:
        if not file.same(fsio.identity(fd)):
            return "changed after it was opened"
        done = 0
        for chunk in fsio.pread_chunks(fd, 0, file.identity.size):
            hasher.update(chunk)
            done += len(chunk)
            if advance is not None:
                advance(done)
        if not file.same(fsio.identity(fd)):
            return "changed while it was read"
    except EOFError:
        return "became shorter while it was read"
    finally:
        os.close(fd)
    found = hasher.hexdigest()
    return "" if found == expected.lower() else f"{algorithm} expected {expected}, found {found}"
