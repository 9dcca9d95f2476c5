"""Calls as bars on a time line: which are within which, and which processes may share a row of a drawing."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cachec.model import Outcome

#: Seconds by which a call may seem to outlive the one that called it: begin and end are of two clocks.
_SLACK = 0.001

#: Rows of calls that overlap in one process; what would need more is drawn over others.
MAX_ROWS = 64


class Bar(NamedTuple):
    """A call from ``begin`` to ``end`` (Unix time). row: of its process; no two bars of a row overlap, except that one
    is within the other. depth: how many of its row it is within."""

    outcome: Outcome
    begin: float
    end: float
    row: int
    depth: int


def by_process(outcomes: Iterable[Outcome]) -> dict[int, list[Bar]]:
    """The calls of each process, by their begin."""
    calls: dict[int, list[tuple[float, float, Outcome]]] = {}
    for outcome in outcomes:
        begin = outcome.time - max(outcome.seconds, 0.0)
        calls.setdefault(outcome.pid, []).append((begin, outcome.time, outcome))
    return {pid: _place_calls(each) for pid, each in sorted(calls.items())}


def _place_calls(calls: list[tuple[float, float, Outcome]]) -> list[Bar]:
    calls.sort(key=lambda call: (call[0], -call[1]))
    bars: list[Bar] = []
    rows: list[list[float]] = []  # of each row the ends of the bars that are not over, the innermost last
    for begin, end, outcome in calls:
        row = _free_row(rows, begin, end)
        ends = rows[row]
        inner = max(begin, min(end, ends[-1]) if ends else end)
        bars.append(Bar(outcome, begin, inner, row, len(ends)))
        ends.append(inner)
    return bars


def _free_row(rows: list[list[float]], begin: float, end: float) -> int:
    """The first row in which a call is after all others, or within one that is not over."""
    for row, ends in enumerate(rows):
        while ends and ends[-1] <= begin + _SLACK:
            ends.pop()
        if not ends or end <= ends[-1] + _SLACK:
            return row
    if len(rows) < MAX_ROWS:
        rows.append([])
    return len(rows) - 1


def tracks(processes: Mapping[int, Sequence[Bar]]) -> list[list[int]]:
    """Processes in as few tracks as there are at once: in one track each begins after the one before has ended."""
    lives = sorted((bars[0].begin, max(bar.end for bar in bars), pid) for pid, bars in processes.items() if bars)
    found: list[list[int]] = []
    free: list[tuple[float, int]] = []  # when each track ends
    for begin, end, pid in lives:
        if free and free[0][0] <= begin:
            number = heapq.heappop(free)[1]
        else:
            number = len(found)
            found.append([])
        found[number].append(pid)
        heapq.heappush(free, (end, number))
    return found
