"""Copies of files, each timed right after an untimed one of its own kind, so that each finds the machine alike.

The memory of a virtual machine is backed by its host when it is first touched, and given back (free page reporting)
once enough of it has been free for a second or two. A copy into pages that the host has to back anew takes two to eight
times as long, all of it system time in the copy of the bytes. Which free pages a copy gets hangs on what was freed
before it, and on the sizes in which it asks for them: ``cp`` asks for small ones, larger writes for large ones, so one
copy's pages do not serve the other, and no order of the copies is fair. Pages that the same kind of copy has freed just
before do. They must be fewer than what the kernel gives back at once (1 GiB was seen), hence files of some 512 MiB.

Nothing of it is written back while a copy is timed: what is dirty is synced before, and the untimed copy is unlinked
before the kernel looks for it. The untimed copy has also read the source, so no copy reads from the disk.

A copy that uses two processors is slower beside others that want them, one that uses one is not: rounds in which other
processes had more than a tenth of all processors count only where there are no others, and the bar then says nothing.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

#: The share of all processors that others may have had in a round that counts.
_OTHERS = 0.1
#: Rounds that are enough to say something.
_ENOUGH = 5


class Taken(NamedTuple):
    """Seconds of one copy; those of the processors, in this process and its children, and in all others meanwhile."""

    seconds: float
    cpu: float
    others: float


class Copies:
    """What each copy took in each round. is_quiet: whether enough rounds had the machine to themselves; they count."""

    def __init__(self, rounds: Sequence[Mapping[str, Taken]]) -> None:
        quiet = [each for each in rounds if _others(each.values()) <= _OTHERS]
        self.is_quiet = len(quiet) >= _ENOUGH
        self.rounds = quiet if self.is_quiet else rounds

    @property
    def said(self) -> str:
        """How many rounds count, and of which machine."""
        return f"{len(self.rounds)} rounds on a {'quiet' if self.is_quiet else 'BUSY'} machine"

    def seconds(self, name: str) -> float:
        """The median."""
        return statistics.median(each[name].seconds for each in self.rounds)

    def speed(self, name: str, peer: str) -> float:
        """How fast a copy is as a multiple of a peer: the median over the rounds, each of which has both."""
        return statistics.median(each[peer].seconds / each[name].seconds for each in self.rounds)

    def cost(self, name: str, peer: str) -> float:
        """The processor time of a copy as a multiple of a peer's, likewise."""
        return statistics.median(each[name].cpu / each[peer].cpu for each in self.rounds)


def _others(taken: Collection[Taken]) -> float:
    """The share of the processors that other processes had while these copies were timed."""
    return sum(each.others for each in taken) / sum(each.seconds for each in taken) / (os.cpu_count() or 1)


def in_turn(work: Mapping[str, Callable[[], object]], made: Mapping[str, Path], rounds: int) -> Copies:
    """Run each copy twice a round, and time the second one. made: what each makes, which is removed after it.

    Each other round goes backwards, and the next one begins with another copy.
    """
    names, taken = list(work), []
    for number in range(rounds):
        at = number // 2 % len(names)
        order = names[at:] + names[:at]
        taken.append({name: _timed(work[name], made[name]) for name in (order[::-1] if number % 2 else order)})
    return Copies(taken)


def _timed(copy: Callable[[], object], made: Path) -> Taken:
    os.sync()
    copy()
    _remove(made)
    busy, cpu, started = _busy(), _cpu(), time.perf_counter()
    copy()
    seconds, cpu = time.perf_counter() - started, _cpu() - cpu
    busy = _busy() - busy
    _remove(made)
    return Taken(seconds, cpu, max(0.0, busy - cpu))


def _cpu() -> float:
    """Seconds of the processors that this process and those that it has waited for have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _busy() -> float:
    """Seconds that all processors have worked, or were not to be had, since the start (proc(5))."""
    user, nice, system, _idle, _waiting, *rest = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    return sum(map(int, (user, nice, system, *rest))) / os.sysconf("SC_CLK_TCK")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
