"""Oversight: the mode that applies to a call, and the callbacks that get its outcome."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

import cachec
from cachec.base.call_hooks import Oversight, current, oversee_process, overseen
from cachec.model import Mode, Outcome, Reason


@pytest.fixture
def double(cache: cachec.Cache) -> cachec.Stage:
    @cache.stage
    def double(n: int) -> int:
        return 2 * n

    return double


def test_nothing_is_in_force_by_default(double: cachec.Stage) -> None:
    program = (
        "from cachec.base.call_hooks import current as c; assert (c().mode, c().on_outcome, c().defer) == (None,) * 3"
    )
    subprocess.run([sys.executable, "-c", program], check=True)  # this process has the plugin's
    with oversee_process(Oversight()):
        assert double(1) == 2


def test_every_outcome_is_heard_also_of_misses_errors_and_nested_calls(
    cache: cachec.Cache, double: cachec.Stage
) -> None:
    @cache.stage
    def outer(n: int) -> int:
        if n > 5:
            raise ValueError(n)
        return double(n) + 1

    heard: list[Outcome] = []
    with overseen(Oversight(heard.append)):
        outer(1)
        outer(1)
        with pytest.raises(ValueError, match="9"):
            outer(9)
    outer(1)
    reasons = [(each.stage.rpartition(".")[2], each.reason) for each in heard]
    assert reasons == [
        ("double", Reason.FIRST_RUN),
        ("outer", Reason.FIRST_RUN),
        ("outer", Reason.HIT),
        ("outer", Reason.STAGE_RAISED),
    ]


@pytest.mark.parametrize("own", ["on", "off", "refresh", "verify"])
def test_its_mode_wins_over_the_cache_and_the_stage(tmp_path: object, own: str) -> None:
    cache = cachec.Cache(f"{tmp_path}/cache", mode=own, log="off")

    @cache.stage(mode=own)
    def never(n: int) -> int:
        raise AssertionError("it ran")

    with overseen(Oversight(mode=Mode.REQUIRE)), pytest.raises(cachec.CacheMissError):
        never(1)
    with pytest.raises(AssertionError, match="it ran"):
        never(1)


def test_what_would_be_counted_may_be_kept_back(cache: cachec.Cache, double: cachec.Stage) -> None:
    held: list[Callable[[], None]] = []
    with overseen(Oversight(defer=held.append)):
        double(1)
    assert cache.events.counts.total() == 0
    assert len(held) == 1
    held[0]()
    assert dict(cache.events.counts) == {Reason.FIRST_RUN: 1}


def test_threads_and_tasks(double: cachec.Stage) -> None:
    mine: list[Outcome] = []
    others: list[Outcome] = []

    def in_thread(target: Callable[[], object]) -> None:
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()

    async def task() -> None:
        await asyncio.gather(*(asyncio.to_thread(double, n) for n in (3, 4)))

    with oversee_process(Oversight(others.append)), overseen(Oversight(mine.append)):
        double(1)
        in_thread(lambda: double(2))
        context = contextvars.copy_context()
        in_thread(lambda: context.run(double, 5))
        asyncio.run(task())
    double(6)
    assert (len(mine), len(others)) == (4, 1)


def test_the_process_is_restored_after_an_error() -> None:
    before = current()
    with pytest.raises(RuntimeError), oversee_process(Oversight(mode=Mode.OFF)):  # noqa: PT012 - both have to be left
        assert current().mode is Mode.OFF
        raise RuntimeError
    assert current() is before
