"""Outputs that a run leaves as they were: they keep their time stamp, so that a build stops there.

A hit leaves an output with the right content alone. A compiler does not: it writes the same bytes again (a comment in
the model changed, say), and the build system would go on with everything downstream.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from cachec.base.hashing import FileDigests
from cachec.launcher.arguments import Command


class _Before(NamedTuple):
    size: int
    mtime_ns: int
    digest: str


class Untouched:
    """The output files of a command as they are before it runs."""

    def __init__(self, command: Command, digests: FileDigests) -> None:
        self._digests = digests
        self._before: dict[str, _Before] = {}
        for output in command.outputs:
            try:
                found = os.stat(output.path)
                if stat.S_ISREG(found.st_mode):
                    digest = digests.of_path(output.path)
                    self._before[output.path] = _Before(found.st_size, found.st_mtime_ns, digest)
            except OSError:
                continue  # it is not there, or not to be read: then there is nothing to keep

    def put_back(self) -> None:
        """Set the time stamp again of each file that has the content that it had. Raises OSError."""
        for path, before in self._before.items():
            try:
                found = os.stat(path)
            except FileNotFoundError:
                continue
            is_new = stat.S_ISREG(found.st_mode) and found.st_mtime_ns != before.mtime_ns
            if is_new and found.st_size == before.size and self._digests.of_path(path) == before.digest:
                os.utime(path, ns=(found.st_atime_ns, before.mtime_ns))
