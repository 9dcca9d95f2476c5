"""Calls as bars: what is within what, and which processes share a track."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachec.model import Outcome, Reason
from cachec.views.rows import MAX_ROWS, by_process, tracks


def call(begin: float, end: float, pid: int = 1, stage: str = "s", reason: Reason = Reason.HIT) -> Outcome:
    return Outcome(reason=reason, stage=stage, key="", seconds=end - begin, time=end, pid=pid)


def test_a_call_within_another_is_one_deeper_and_one_beside_it_has_a_row_of_its_own() -> None:
    calls = [call(1, 4, stage="inner"), call(2, 3, stage="innermost"), call(0, 10, stage="outer")]
    calls += [call(5, 12, stage="beside"), call(11, 13, stage="after"), call(0, 1, pid=2)]
    (_, bars), (_, others) = by_process(calls).items()
    placed = {bar.outcome.stage: (bar.row, bar.depth) for bar in bars}
    assert placed == {"outer": (0, 0), "inner": (0, 1), "innermost": (0, 2), "beside": (1, 0), "after": (0, 0)}
    assert [(bar.row, bar.depth) for bar in others] == [(0, 0)]


def test_a_call_does_not_outlive_the_one_that_called_it() -> None:
    """Begin and end come of two clocks."""
    inner, outer = call(100.0005, 110.0004), call(100.0, 110.0)
    bars = by_process([inner, outer])[1]
    assert [(bar.row, bar.depth, bar.end) for bar in bars] == [(0, 0, 110.0), (0, 1, 110.0)]


moments = st.floats(0, 100).map(lambda value: round(value, 3))


@given(st.lists(st.tuples(moments, moments), max_size=30))
def test_bars_of_a_row_are_apart_or_within(pairs: list[tuple[float, float]]) -> None:
    bars = by_process(call(min(pair), max(pair)) for pair in pairs).get(1, [])
    assert len(bars) == len(pairs)
    for at, first in enumerate(bars):
        for second in bars[at + 1 :]:
            if first.row == second.row:
                apart = second.begin >= first.end - 0.002
                assert apart or (first.begin <= second.begin and second.end <= first.end and first.depth < second.depth)


def test_more_rows_than_can_be_drawn_are_put_together() -> None:
    bars = by_process(call(number, 1000 + number) for number in range(MAX_ROWS + 9))[1]
    assert {bar.row for bar in bars} == set(range(MAX_ROWS))


def test_processes_one_after_the_other_share_a_track() -> None:
    processes = by_process([call(0, 2, 1), call(1, 3, 2), call(2, 5, 3), call(4, 6, 4), call(0.5, 0.6, 5)])
    assert tracks(processes) == [[1, 3], [5, 2, 4]]
