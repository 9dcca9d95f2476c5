"""Common parts of the wrappers of MLIR's compilers: output files, files that flags name, flags that keep names."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

from cachec.commands.run import run
from cachec.errors import UsageError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.weights.manifest import Manifest

_SEPARATORS = re.compile(r"[=,:;@\s]")

#: The number of bytes of a tool's output, from its end, that an error shows.
_SHOWN = 8192


def run_tool(
    command: Sequence[str | os.PathLike[str]],
    flags: Sequence[str],
    *,
    cwd: Path,
    tools: Sequence[str | os.PathLike[str]] = (),
    inputs: Sequence[str | os.PathLike[str]] = (),
    outputs: Sequence[str] = (),
) -> None:
    """Run a compiler in a new folder, with ``cachec.run``.

    flags: the part of ``command`` that may name files. A file that it names by an absolute path is an input, too (see
    ``named_files``). Raises subprocess.CalledProcessError with the end of the tool's output as a note.
    """
    import subprocess  # a hit runs no tool

    there, absent = named_files(flags)
    try:
        run(command, tools=tools, inputs=[*inputs, *there], candidates=absent, outputs=outputs, cwd=cwd)
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr[-_SHOWN:].decode(errors="replace"))
        raise


def named_files(flags: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the absolute paths in the flags: ``--spec=/x``, ``-L/x``, ``@/x``, ``--import=scope=/x``, lists of them.

    The first result has existing files and folders, which are inputs by content. The second has missing paths. The
    tools run in a new folder, so a relative path names no file of the user.
    """
    paths: dict[str, None] = {}
    for piece in (piece for flag in flags for piece in _SEPARATORS.split(flag)):
        at = piece.find("/")
        if at == 0 or (at > 0 and piece.startswith("-")):
            paths[piece[at:]] = None
    there = tuple(path for path in paths if os.path.exists(path))
    return there, tuple(path for path in paths if path not in there)


def check_list(option: str, value: object) -> None:
    """Raise UsageError for one string instead of a sequence of strings."""
    if isinstance(value, str):
        raise UsageError(f"{option} expected a sequence of strings, found one string {value!r}; write [{value!r}]")


def file_in_new_folder(name: str, *, kind: str, manifest: Manifest | None) -> File:
    """Return a file, not yet written, in a new temporary folder that is removed with the file object."""
    import tempfile  # slow to import, and not needed to strip

    folder = Path(tempfile.mkdtemp(prefix="cachec-"))
    file = File(folder / name, kind=kind, manifest=manifest)
    weakref.finalize(file, _remove, folder, os.getpid())
    return file


def check_unnamed(program: Program, keeping: Iterable[str]) -> None:
    """Raise UsageError for flags that keep names and locations, if ``program`` is keyed without them.

    The same is true of flags that read comments (``// -----`` of --split-input-file). keeping: such flags of the
    compilation. With one, two programs of one key would have two results, and a hit would have the other one's names.
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
