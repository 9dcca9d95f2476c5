"""Entries that were removed on purpose, so that no remote brings them back.

    forgotten:<namespace>:<key>    a Forgotten, in stores that have had to do with remotes (their folder ``remote``)

What was evicted is not forgotten: it is fetched again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import msgspec

from cachec.errors import StoreFault
from cachec.model import RECORD_VERSION, Entry, Fault
from cachec.store.index import Index
from cachec.store.row_codec import pack, unpack

#: Begins the names of rows; their tag.
PREFIX, TAG = "forgotten:", "forgotten"

#: How long that is remembered.
RETENTION_SECONDS = 365 * 86400.0

#: Seconds by which the clock of the machine of a run may be ahead.
_AHEAD = 300.0


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """Runs up to this Unix time are not to come back."""

    version: int
    time: float


def forget(index: Index, store: str | os.PathLike[str], names: Mapping[str, float]) -> None:
    """To be called in the transaction that removes entries.

    names: namespace and key, as in the names of their rows, and the Unix time of the latest run that is known, by the
    clock of its machine, which may be far ahead.
    """
    if os.path.isdir(os.path.join(store, "remote")):
        for name, created in names.items():
            until = max(time.time() + _AHEAD, created)
            index.write(PREFIX + name, pack(Forgotten(version=RECORD_VERSION, time=until)), TAG)


def latest(entry: Entry | None) -> float:
    """The Unix time of the latest run of an entry; 0 where none can be read."""
    return max((trace.created for trace in entry.traces), default=0.0) if entry else 0.0


def forgotten(index: Index, name: str) -> float:
    """The Unix time up to which runs of an entry are not to come back. Raises StoreFault where the index fails."""
    try:
        row = index.read(PREFIX + name)
        return 0.0 if row is None else unpack(row, Forgotten, name).time
    except StoreFault as fault:
        if fault.fault not in {Fault.ROW_CORRUPT, Fault.ROW_VERSION, Fault.ROW_REFUSED}:
            raise
        return float("inf")  # it was forgotten, whenever that was
