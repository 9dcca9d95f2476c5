"""Invalidation: the plan says what is lost, and its application takes that and nothing else."""

from __future__ import annotations

import pytest

from cachec.maintain.selector import Selector
from cachec.model import Fault
from tests.parts import part

from .conftest import DAY, Yard, key_of

ONE, TWO, THREE = map(key_of, range(3))


@pytest.fixture(autouse=True)
def _entries(yard: Yard) -> None:
    yard.publish(ONE, stage="pkg.lower", seconds=2.0)
    yard.publish(TWO, tags=("keep",), seconds=3.0)
    yard.publish(THREE, seconds=5.0, content=b"x" * 5000)


def test_a_plan_changes_nothing(yard: Yard) -> None:
    plan = yard.maintainer.plan(Selector(stages=("build",)))
    assert {each.key for each in plan.chosen} == {TWO, THREE}
    assert plan.seconds == 8.0
    assert plan.nbytes == 4096 + 8192 + 2 * 4096  # two artifacts, and the parts of each
    assert len(plan) == 2
    assert yard.keys() == {ONE, TWO, THREE}


def test_applied_it_takes_what_it_says(yard: Yard) -> None:
    plan = yard.maintainer.plan(Selector(stages=("build",)))
    done = plan.apply()
    assert set(done.removed) == {TWO, THREE}
    assert (done.changed, done.pinned) == ((), ())
    assert yard.keys() == {ONE}
    names = list(yard.store.index.keys())
    assert [name for name in names if name.startswith("summary:")] == [f"summary:default:{ONE}"]
    assert plan.apply().removed == ()
    assert len(yard.objects()) == 6  # files stay until gc


def test_bytes_that_another_entry_needs_are_not_counted(yard: Yard) -> None:
    other = Yard(yard.folder, "other")
    other.publish(key_of(9), content=b"x" * 5000, parts=(part("arg/key", THREE),))
    assert yard.maintainer.plan(Selector(keys=(THREE,))).nbytes == 0


def test_an_entry_that_was_made_anew_since_the_plan_is_left(yard: Yard) -> None:
    plan = yard.maintainer.plan(Selector())
    yard.publish(TWO, seconds=9.0)
    done = plan.apply()
    assert done.changed == (TWO,)
    assert set(done.removed) == {ONE, THREE}
    assert yard.keys() == {TWO}


def test_pinned_entries_are_left_unless_forced(yard: Yard) -> None:
    yard.maintainer.pins.add("tag", "keep")
    yard.maintainer.pins.add("key", ONE)
    plan = yard.maintainer.plan(Selector())
    assert set(plan.pinned) == {ONE, TWO}
    assert plan.apply().removed == (THREE,)
    forced = yard.maintainer.plan(Selector(), force=True)
    assert set(forced.apply().removed) == {ONE, TWO}


def test_an_entry_that_was_pinned_since_the_plan_is_left(yard: Yard) -> None:
    plan = yard.maintainer.plan(Selector())
    yard.maintainer.pins.add("key", THREE)
    done = plan.apply()
    assert done.pinned == (THREE,)
    assert yard.keys() == {THREE}


def test_a_pin_holds_in_its_own_namespace(yard: Yard) -> None:
    other = Yard(yard.folder, "a:b")
    other.publish(ONE)
    other.maintainer.pins.add("key", ONE)
    assert yard.maintainer.plan(Selector(keys=(ONE,))).pinned == ()
    assert other.maintainer.plan(Selector(keys=(ONE,))).pinned == (ONE,)
    assert other.maintainer.pins.read().of(other.store.quoted, "key") == [ONE]
    assert yard.maintainer.pins.read().of(yard.store.quoted, "key") == []
    assert other.maintainer.pins.remove("key", ONE)
    assert not other.maintainer.pins.remove("key", ONE)
    assert len(other.maintainer.pins.read()) == 0


def test_other_namespaces_stay(yard: Yard) -> None:
    other = Yard(yard.folder, "default:x")
    other.publish(ONE)
    yard.maintainer.plan(Selector()).apply()
    assert yard.keys() == set()
    assert other.keys() == {ONE}


def test_a_damaged_row_goes_by_its_whole_key_only(yard: Yard) -> None:
    yard.store.index.write(f"entry:default:{ONE}", b"garbage", "x")
    assert {each.key for each in yard.maintainer.plan(Selector()).chosen} == {TWO, THREE}
    plan = yard.maintainer.plan(Selector(keys=(ONE,), newer_than=DAY * 9))
    assert (plan.chosen, plan.known) == ((), {ONE})  # whether the rest holds can't be told
    yard.maintainer.pins.add("key", ONE)
    assert yard.maintainer.plan(Selector(keys=(ONE,))).pinned == (ONE,)
    yard.maintainer.pins.remove("key", ONE)
    plan = yard.maintainer.plan(Selector(keys=(ONE,)))
    assert [(each.key, each.stage, each.created) for each in plan.chosen] == [(ONE, "", None)]
    assert plan.apply().removed == (ONE,)
    assert yard.keys() == {TWO, THREE}


def test_a_row_that_is_not_plain_bytes_goes_too(yard: Yard) -> None:
    import sqlite3

    yard.store.close()
    with sqlite3.connect(yard.folder / "index" / "cache.db") as rows:
        rows.execute("UPDATE Cache SET mode = 4 WHERE key = ?", (yard.store.index.row_name(f"entry:default:{ONE}"),))
    rows.close()
    assert yard.maintainer.plan(Selector(keys=(ONE,))).apply().removed == (ONE,)
    assert list(yard.maintainer.find(Selector(keys=(ONE,)))) == []
    assert Fault.ROW_REFUSED not in yard.faults


def test_progress_is_told(yard: Yard) -> None:
    told: list[tuple[int, int]] = []
    yard.maintainer.plan(Selector()).apply(lambda done, total: told.append((done, total)))
    assert told == [(3, 3)]
