"""Copies that are compared find the machine alike: each follows one of its own kind whose output is gone."""

from __future__ import annotations

import os

import pytest

from bench.copies import Copies, Taken, in_turn


def test_each_copy_is_timed_after_one_of_its_own_that_was_removed(tmp_path):
    made = {name: tmp_path / name for name in ("cp", "folder")}
    ran = []

    def copy(name):
        assert not any(path.exists() for path in made.values())
        ran.append(name)
        if name == "folder":
            made[name].mkdir()
            (made[name] / "file").write_bytes(b"x")
        else:
            made[name].write_bytes(b"x")

    took = in_turn({name: lambda name=name: copy(name) for name in made}, made, 4)
    assert [first == second for first, second in zip(ran[::2], ran[1::2], strict=True)] == [True] * 8
    rounds = [frozenset(ran[at : at + 4]) for at in range(0, 16, 4)]
    assert rounds == [frozenset(made)] * 4
    assert len({tuple(ran[at : at + 4 : 2]) for at in range(0, 16, 4)}) == 2, "none is always the first"
    assert not any(path.exists() for path in made.values())
    assert took.seconds("cp") > 0


def test_a_ratio_is_the_median_of_those_within_a_round():
    rounds = [
        {"cp": Taken(1.0, 1.0, 0.0), "mine": Taken(2.0, 4.0, 0.0)},
        {"cp": Taken(8.0, 1.0, 0.0), "mine": Taken(8.0, 2.0, 0.0)},  # both were slow: that says nothing of either
        {"cp": Taken(1.0, 1.0, 0.0), "mine": Taken(1.25, 3.0, 0.0)},
    ]
    took = Copies(rounds)
    assert took.speed("mine", "cp") == pytest.approx(0.8)
    assert took.cost("mine", "cp") == pytest.approx(3.0)
    assert took.seconds("mine") == pytest.approx(2.0)


def test_rounds_beside_other_work_count_only_where_there_are_no_others():
    cores = os.cpu_count() or 1
    quiet = {"cp": Taken(1.0, 1.0, 0.0), "mine": Taken(1.0, 2.0, 0.1 * cores)}
    busy = {"cp": Taken(1.0, 1.0, 0.0), "mine": Taken(4.0, 2.0, cores)}
    took = Copies([busy, quiet] * 5)
    assert took.is_quiet
    assert took.speed("mine", "cp") == pytest.approx(1.0)
    took = Copies([busy, busy, quiet] * 4)
    assert not took.is_quiet
    assert len(took.rounds) == 12
    assert took.speed("mine", "cp") == pytest.approx(0.25)
