"""What of a store goes to remotes that were not there, or not known, when it was made."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from cachec.model import Entry, Inline, Record, Trace
from cachec.remote.chain import Remotes, local_path

#: Why an entry is not sent, as it is counted, and in words.
UNSENT_REASONS = {
    "local-path": "looked at a path of this machine",
    "foreign": "of JAX, torch or another cache, which sends them as they are made (shared=True)",
    "unvouched": "not signed: the store may have them of others (--vouch)",
}


class UnsentEntry(NamedTuple):
    """An entry that is not sent."""

    entry: Entry
    #: Of ``UNSENT_REASONS``.
    why: str
    #: The path, or where it does not go.
    detail: str


class Backfill(NamedTuple):
    """What came of it."""

    #: Runs, each for one remote, which ``Remotes.drain`` sends.
    queued: int
    #: How many were not sent, by reason.
    unsent: Counter[str]
    #: The first that was left, by why.
    first: dict[str, UnsentEntry]


def seed(remotes: Remotes, entries: Iterable[Entry], *, vouch: bool = False) -> Backfill:
    """Have the runs of entries wait for each remote that is written; whether that has them is asked as they are sent.

    vouch: also for remotes where rows are signed. What a store has may come from other remotes and from bundles, and
    nothing of it says so: without this nobody's word is given for it. Raises StoreFault where nothing can be written.
    """
    written = [remote for remote in remotes.all if remote.address.is_written]
    taking = [remote for remote in written if vouch or not remote.address.trust.is_signing]
    others = " ".join(remote.address.shown for remote in written if remote not in taking)
    queued, skipped, first = 0, Counter[str](), dict[str, UnsentEntry]()
    for entry in entries:
        runs = [trace for trace in entry.traces if not local_path(trace.reads)]
        if any(_is_foreign(trace) for trace in entry.traces):
            found = UnsentEntry(entry, "foreign", "")
        elif not runs:
            found = UnsentEntry(entry, "local-path", local_path(entry.traces[0].reads) if entry.traces else "")
        else:
            queued += sum(remotes.queue(taking, entry.key, trace) for trace in runs)
            if not others:
                continue
            found = UnsentEntry(entry, "unvouched", others)
        skipped[found.why] += 1
        first.setdefault(found.why, found)
    return Backfill(queued, skipped, first)


def _is_foreign(trace: Trace) -> bool:
    """Whether it is bytes under the key of another, as ``cachec.blob_cache`` writes them."""
    match trace.value:
        case Record("", ("data", "seal"), (_, Inline("str", str(seal)))):
            return not trace.reads and re.fullmatch("[0-9a-f]{64}", seal) is not None
    return False
