"""How much memory a worker uses, with the programs that it started."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

#: Of proc_pid_status(5): what a process has resident of its own, in kB, and its seccomp filters.
_FIELDS = re.compile(rb"^(RssAnon|RssShmem|Seccomp_filters):\s*(\d+)", re.MULTILINE)


class _ProcessStatus(NamedTuple):
    nbytes: int
    filters: int


def resident(supervisor: int) -> int:
    """The bytes that the worker of a supervisor has resident, with all that it has started; code of files does not
    count."""
    own = _status(supervisor)
    found = [(pid, _status(pid)) for pid in _children(supervisor)]
    traced = [each for each in found if each[1].filters > own.filters]  # the keeper of the listener is not
    return sum(status.nbytes + sum(map(_tree, _children(pid))) for pid, status in traced or found)


def _tree(pid: int) -> int:
    return _status(pid).nbytes + sum(map(_tree, _children(pid)))


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())


def _status(pid: int) -> _ProcessStatus:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
        fields = {name: int(value) for name, value in _FIELDS.findall(file.read())}
        nbytes = (fields.get(b"RssAnon", 0) + fields.get(b"RssShmem", 0)) * 1024
        return _ProcessStatus(nbytes, fields.get(b"Seccomp_filters", 0))
    return _ProcessStatus(0, 0)
