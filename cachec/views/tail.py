"""The log as it grows: calls that other processes write, in the order that they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cachec.base import fsio
from cachec.events import day_files, outcome_of
from cachec.model import Outcome

#: Bytes that are read at once; a record is a page at most.
_CHUNK = 1 << 20


class Follower:
    """Returns each call of a log once, and skips malformed records."""

    def __init__(self, dir: str | os.PathLike[str], since: float | None = None) -> None:
        """since: as in ``read_log``."""
        self._dir = dir
        self._since = since
        self._read: dict[
            str, tuple[tuple[int, int], int]
        ] = {}  # of each file which one it is, and the bytes read of it

    def new(self) -> Iterator[Outcome]:
        """The calls since the last time that this was asked. What is being written waits for its end."""
        for path in day_files(self._dir, self._since):
            try:
                fd = fsio.open_read(path)
            except OSError:
                continue  # removed
            with fsio.closing(fd):
                yield from self._of(path, fd)

    def _of(self, path: str, fd: int) -> Iterator[Outcome]:
        status = os.fstat(fd)
        place = (status.st_dev, status.st_ino)
        known, at = self._read.get(path, (place, 0))
        if known != place or at > status.st_size:
            at = 0  # another file has its name, or it was emptied
        while data := os.pread(fd, _CHUNK, at):
            whole = data.rfind(b"\n") + 1
            if not whole and len(data) < _CHUNK:
                break
            at += whole or len(data)  # a line without an end is no record
            for line in data[:whole].splitlines():
                outcome = outcome_of(line)
                if outcome is not None and (self._since is None or outcome.time >= self._since):
                    yield outcome
        self._read[path] = (place, at)
