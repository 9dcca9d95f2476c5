"""What an entry is worth: who is evicted first.

    worth = level(last use) + uses * seconds / bytes

seconds: how long its stage runs; bytes: of its artifacts, so each byte that stays saves the most. The level rises to
the worth of what is evicted, so what was not used since then falls behind what was: the entries that cost little are
evicted least recently used first. This is GreedyDual-Size with frequency: Cao and Irani, "Cost-Aware WWW Proxy Caching
Algorithms", USENIX Symposium on Internet Technologies and Systems, 1997; the frequency: Cherkasova, HP Laboratories
report HPL-98-69R1, 1998. They raise the level at each eviction; ``gc`` at each of its batches.

Uses come from the outcome log, the levels from the row ``gc:``. A clock that jumps back makes a use look older than it
is; that is a worse choice, never a wrong result.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from cachec.model import RECORD_VERSION, Digest, Outcome

#: Levels that are remembered; of older ones the first of two is dropped, time and again.
MAX_LEVELS = 1000


class UseCount(NamedTuple):
    """times: hits, and runs that were stored. last: Unix time."""

    times: int
    last: float


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """The row ``gc:``. times: Unix times, ascending; levels: the level from each of them on."""

    version: int
    times: tuple[float, ...] = ()
    levels: tuple[float, ...] = ()

    @property
    def highest(self) -> float:
        """The level of now."""
        return max(self.levels, default=0.0)

    def at(self, time: float) -> float:
        """The level at a time."""
        count = bisect_right(self.times, time)
        return self.levels[count - 1] if count else 0.0

    def raised(self, time: float, level: float) -> Levels:
        """With a level from that time on; unchanged where it is no higher than that of now."""
        if level <= self.highest:
            return self
        time = max(time, self.times[-1]) if self.times else time
        selected = slice(None) if len(self.times) < MAX_LEVELS else slice(1, None, 2)
        return Levels(
            version=RECORD_VERSION, times=(*self.times[selected], time), levels=(*self.levels[selected], level)
        )


def uses(log: Iterable[Outcome]) -> dict[Digest, UseCount]:
    """How often, and when last, each key was hit or stored."""
    counts: dict[Digest, UseCount] = {}
    for outcome in log:
        count_use(counts, outcome)
    return counts


def count_use(counts: dict[Digest, UseCount], outcome: Outcome) -> None:
    """Count a call, if it is a use."""
    if outcome.hit or outcome.stored:
        before = counts.get(outcome.key)
        if before is None:
            counts[outcome.key] = UseCount(1, outcome.time)
        else:
            counts[outcome.key] = UseCount(before.times + 1, max(before.last, outcome.time))


def worth(level: float, times: int, seconds: float, nbytes: int) -> float:
    """The worth of an entry, in seconds a byte. level: at its last use."""
    return level + times * seconds / max(nbytes, 1)
