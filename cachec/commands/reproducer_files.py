"""What a command was given and left behind, for a reproducer: the files that its arguments name, before and after.

This is no part of a key or a trace's reads: those are what ``cachec.run`` was told. An argument names a file by all of
itself or by a piece behind ``=`` or ``,``; a file that is new or changed afterwards is one that the command wrote.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence

from cachec.base import fsio
from cachec.base.fsio import Identity
from cachec.base.hashing import digest_bytes
from cachec.base.paths import absolute
from cachec.recording import CommandRun, FileState, ReadRecorder
from cachec.weights.formats import WEIGHT_SUFFIXES

#: Bytes of a file that a reproducer keeps by itself; a larger one is looked for in its place when one is made.
MAX_FILE_BYTES = 4 << 20
#: The same for all files of a run, and the number of files that are read in declared folders.
MAX_RUN_BYTES = 32 << 20
_MAX_FILES = 1024
#: How many contents a run keeps: a hit reads their names.
MAX_FILES = 64
#: The size above which an undeclared file is not hashed for this.
_MAX_HASHED = 64 << 20
#: Bytes of the end of what the command wrote to stderr.
_STDERR = 8192

_PIECES = re.compile(r"[=,]")


class FileCapture:
    """Looks before a command starts, and again when it has ended."""

    def __init__(
        self,
        recorder: ReadRecorder,
        args: Sequence[str],
        program: str,
        cwd: str,
        environ: Mapping[str, str | None],
        *,
        inputs: Collection[str],
        outputs: Collection[str],
        weights: Mapping[str, str],
        stdin: bytes | str | None,
    ) -> None:
        """inputs, outputs, weights: absolute paths; folders among inputs are walked. stdin: bytes, or a path."""
        self._recorder = recorder
        before = [file.data for run in recorder.commands() for file in run.inputs if file.data is not None]
        self._captured_bytes, self._files = sum(map(len, before)), len(before)
        self._before = {path: _identity(path) for path in (*outputs, *_argument_paths(args[1:], cwd))}
        files = [*_files(inputs), *(path for path, state in self._before.items() if state is not None)]
        # They are not declared as weights, but a reproducer has only their specs.
        unsaid = (path for path in files if os.path.splitext(path)[1] in WEIGHT_SUFFIXES)
        weights = {**dict.fromkeys(unsaid, "content"), **weights}
        self._withheld = {place for path in weights if (place := _place(path)) is not None}
        self.run = CommandRun(tuple(args), program, cwd, dict(environ), weights)
        self.run.inputs = tuple(file for path in dict.fromkeys(files) if (file := self._describe(path)) is not None)
        if isinstance(stdin, bytes):
            self.run.stdin = FileState("", digest_bytes(stdin), len(stdin), self._capture(stdin))
        elif stdin is not None:
            self.run.stdin = self._describe(stdin)
        recorder.command(self.run)

    def record_end(self, returncode: int, stderr: bytes) -> None:
        """The command has ended: note what it wrote."""
        self.run.returncode = returncode
        self.run.stderr = stderr[-_STDERR:]
        written = [path for path, before in self._before.items() if (now := _identity(path)) != before and now]
        self.run.outputs = tuple(file for path in written if (file := self._describe(path, keep=False)) is not None)

    def _describe(self, path: str, *, keep: bool = True) -> FileState | None:
        """Return the state of a file; None for a weight, and for a missing, unreadable or too large file."""
        try:
            status = os.stat(path)
            if (status.st_dev, status.st_ino) in self._withheld or status.st_size > _MAX_HASHED:
                return None
            if keep and self._fits(status.st_size):
                with fsio.closing(fsio.open_read(path)) as fd:
                    data = fsio.pread_exact(fd, 0, status.st_size)
                return FileState(path, digest_bytes(data), len(data), self._capture(data))
            return FileState(path, self._recorder.digests.of_path(path), status.st_size)
        except (OSError, EOFError):
            return None  # the key and the reads check it elsewhere; a reproducer can omit it

    def _capture(self, data: bytes) -> bytes | None:
        if not self._fits(len(data)):
            return None
        self._captured_bytes += len(data)
        self._files += 1
        return data

    def _fits(self, nbytes: int) -> bool:
        return nbytes <= MAX_FILE_BYTES and self._captured_bytes + nbytes <= MAX_RUN_BYTES and self._files < MAX_FILES


def _argument_paths(args: Sequence[str], cwd: str) -> Iterator[str]:
    for arg in args:
        for piece in dict.fromkeys((arg, *_PIECES.split(arg))):
            if piece and "\0" not in piece and len(piece) < 4096:
                yield absolute(os.path.join(cwd, piece))


def _files(paths: Collection[str]) -> Iterator[str]:
    remaining = _MAX_FILES
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        for folder, names, files in os.walk(path):
            names.sort()
            for name in sorted(files)[:remaining]:
                remaining -= 1
                yield os.path.join(folder, name)


def _identity(path: str) -> Identity | None:
    """Return the identity of a regular file; None for other kinds, and for a missing file."""
    try:
        return fsio.identity(path) if stat.S_ISREG(os.stat(path).st_mode) else None
    except (OSError, ValueError):
        return None


def _place(path: str) -> tuple[int, int] | None:
    identity = _identity(path)
    return None if identity is None else (identity.dev, identity.ino)
