"""What wrappers of MLIR's compilers share: files that they make, files that flags name, flags that keep names."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cachec.errors import UsageError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.weights.manifest import Manifest

_SEPARATORS = re.compile(r"[=,:;@\s]")


class Named(NamedTuple):
    """Absolute paths: files and folders that are there, and paths where nothing is."""

    there: tuple[str, ...]
    absent: tuple[str, ...]


def named_files(flags: Sequence[str]) -> Named:
    """What the flags name by an absolute path: ``--spec=/x``, ``-L/x``, ``@/x``, ``--import=scope=/x``, lists of them.

    Their content is as much an input as the flags are: to be given to ``run`` as ``inputs`` and ``candidates``. The
    tools run in a folder of their own, so a relative path leads nowhere.
    """
    paths: dict[str, None] = {}
    for piece in (piece for flag in flags for piece in _SEPARATORS.split(flag)):
        at = piece.find("/")
        if at == 0 or (at > 0 and piece.startswith("-")):
            paths[piece[at:]] = None
    there = tuple(path for path in paths if os.path.exists(path))
    return Named(there, tuple(path for path in paths if path not in there))


def file_in_new_folder(name: str, *, kind: str, manifest: Manifest | None) -> File:
    """A file, yet to be written, in a new temporary folder that is removed when nobody holds the file object."""
    import tempfile  # slow to import, and not needed to strip

    folder = Path(tempfile.mkdtemp(prefix="cachec-"))
    file = File(folder / name, kind=kind, manifest=manifest)
    weakref.finalize(file, _remove, folder, os.getpid())
    return file


def difference(fresh: File, stored: File) -> str | None:
    """None where two files are equal byte for byte, else where they begin to differ, in words."""
    a, b = fresh.read_bytes(), stored.read_bytes()
    if a == b:
        return None
    where = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"{len(a)} against {len(b)} bytes, first difference at byte {where}"


def check_unnamed(program: Program, keeping: Iterable[str]) -> None:
    """Raise UsageError where ``program`` is keyed without names and locations, and flags keep these in the result, or
    read comments (``// -----`` of --split-input-file).

    keeping: such flags, among those that the compiler is to get. With one, two programs of one key would give two
    results, and a hit the other one's names.
    """
    first = next(iter(keeping), None)
    if first is not None and program.canonical is not None:
        raise UsageError(
            f"{first} keeps names or locations of the program in the result, or reads its comments, and this program "
            "is keyed without them; make it with cachec_mlir.program(..., locations=True), or leave the flag out"
        )


def _remove(folder: Path, owner: int) -> None:
    """Remove a scratch folder, but not from a process that was forked off its owner."""
    if os.getpid() == owner:
        import shutil

        shutil.rmtree(folder)
