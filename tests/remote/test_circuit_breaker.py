"""When a remote is left alone, and asked again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cachec.remote.circuit_breaker import OFF_SECONDS, Breaker


def aged(folder: Path, seconds: float) -> None:
    then = time.time() - seconds
    for path in folder.iterdir():
        os.utime(path, (then, then))


def test_three_faults_in_a_row_are_enough_for_all_processes(tmp_path: Path) -> None:
    processes = [Breaker(tmp_path, "a", 2.0) for _ in range(4)]
    assert [each.record_failure(0.0) for each in processes[:3]] == [False, False, True]
    assert all(each.is_off() for each in (*processes[2:], Breaker(tmp_path, "a", 2.0)))
    assert not Breaker(tmp_path, "b", 2.0).is_off()


def test_a_good_answer_forgets_all(tmp_path: Path) -> None:
    one = Breaker(tmp_path, "a", 2.0)
    for _ in range(5):
        assert not one.record_failure(0.0)
        assert not one.record_failure(0.0)
        assert not one.record_answer(0.01)
        assert not one.record_answer(-3.0), "a result that took less to get than to make"


@pytest.mark.parametrize(("seconds", "answers"), [(0.3, 10), (1.6, 2), (0.11, 25)])
def test_answers_that_take_long_and_give_nothing_cost_three_seconds(
    tmp_path: Path, seconds: float, answers: int
) -> None:
    states = [Breaker(tmp_path, "a", 2.0).record_answer(seconds) for _ in range(answers)]
    assert (states.count(True), states[-1]) == (1, True)


def test_after_a_minute_it_is_tried_once(tmp_path: Path) -> None:
    for _ in range(3):
        Breaker(tmp_path, "a", 2.0).record_failure(0.0)
    aged(tmp_path, OFF_SECONDS + 1)
    assert not Breaker(tmp_path, "a", 2.0).is_off()
    assert Breaker(tmp_path, "a", 2.0).record_failure(0.0), "one more is enough"
    aged(tmp_path, OFF_SECONDS + 1)
    assert not Breaker(tmp_path, "a", 2.0).record_answer(0.0)
    assert not Breaker(tmp_path, "a", 2.0).record_failure(0.0)
    aged(tmp_path, OFF_SECONDS + 1)
    assert [Breaker(tmp_path, "a", 2.0).record_failure(0.0) for _ in range(3)] == [False, False, True], (
        "what is old is no row"
    )
    aged(tmp_path, -3600)
    assert not Breaker(tmp_path, "a", 2.0).is_off(), "a clock that was set back ends it"


def test_where_nothing_can_be_written_each_remembers_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    one = Breaker(tmp_path / "file", "a", 2.0)
    assert [one.record_failure(0.0) for _ in range(3)] == [False, False, True]
    assert one.is_off()
    assert not one.record_answer(0.0)
    assert not one.is_off()
