"""The order of eviction: GreedyDual-Size with frequency, and what the log says of uses."""

from __future__ import annotations

import pytest

from cachec.maintain.eviction_score import MAX_LEVELS, Levels, UseCount, uses, worth
from cachec.model import RECORD_VERSION, Outcome, Reason


def outcome(reason: Reason, key: str, time: float, *, stored: bool = False) -> Outcome:
    return Outcome(reason=reason, stage="s", key=key, time=time, stored=stored)


def test_uses_are_hits_and_stored_runs() -> None:
    log = [
        outcome(Reason.FIRST_RUN, "a", 1.0, stored=True),
        outcome(Reason.HIT, "a", 5.0),
        outcome(Reason.HIT, "a", 3.0),  # a clock that jumped back
        outcome(Reason.FIRST_RUN, "b", 4.0),  # not stored
        outcome(Reason.STAGE_RAISED, "c", 4.0),
        outcome(Reason.HIT, "d", 9.0),
    ]
    assert uses(log) == {"a": UseCount(3, 5.0), "d": UseCount(1, 9.0)}


def test_worth_rises_with_seconds_uses_and_level_and_falls_with_bytes() -> None:
    base = worth(0.0, 1, 10.0, 1000)
    assert base == pytest.approx(0.01)
    assert worth(0.0, 1, 20.0, 1000) > base
    assert worth(0.0, 2, 10.0, 1000) > base
    assert worth(0.5, 1, 10.0, 1000) > base
    assert worth(0.0, 1, 10.0, 2000) < base
    assert worth(0.0, 1, 10.0, 0) == 10.0  # nothing on disk: no division by nothing


def test_the_level_of_a_time() -> None:
    levels = Levels(version=RECORD_VERSION)
    assert levels.at(5.0) == levels.highest == 0.0
    levels = levels.raised(10.0, 0.5).raised(20.0, 0.7)
    assert [levels.at(time) for time in (9.9, 10.0, 19.0, 20.0, 99.0)] == [0.0, 0.5, 0.5, 0.7, 0.7]
    assert levels.raised(30.0, 0.6) is levels  # it never falls
    back = levels.raised(5.0, 0.9)  # a clock that jumped back: times stay in order
    assert back.times == (10.0, 20.0, 20.0)
    assert back.at(20.0) == 0.9


def test_what_was_not_used_since_falls_behind() -> None:
    """After an eviction at worth 2, an old entry of worth 1 goes before a new one of worth 0.5."""
    levels = Levels(version=RECORD_VERSION).raised(100.0, 2.0)
    old = worth(levels.at(50.0), 1, 1.0, 1)
    new = worth(levels.at(150.0), 1, 0.5, 1)
    assert old < new


def test_the_levels_do_not_grow_without_a_bound() -> None:
    levels = Levels(version=RECORD_VERSION)
    for number in range(3 * MAX_LEVELS):
        levels = levels.raised(float(number), number + 1.0)
    assert len(levels.times) == len(levels.levels) <= MAX_LEVELS
    assert levels.highest == 3 * MAX_LEVELS
    assert list(levels.times) == sorted(levels.times)
