"""Threads that share work: all of it is done once, an exception ends it and is raised."""

from __future__ import annotations

import threading
import time

import pytest

from cachec.base.workers import THREADS, in_threads


@pytest.mark.parametrize("count", [0, 1, 7, 200])
def test_everything_is_done_once(count: int) -> None:
    done: list[int] = []
    in_threads(done.append, range(count))
    assert sorted(done) == list(range(count))


def test_several_threads_take_part_where_there_is_enough_to_do() -> None:
    names: set[int] = set()

    def work(_item: int) -> None:
        names.add(threading.get_ident())
        time.sleep(0.002)

    in_threads(work, range(5))
    assert names == {threading.get_ident()}
    in_threads(work, range(300))
    assert 1 < len(names) <= THREADS
    assert not [thread for thread in threading.enumerate() if thread.name == "cachec-worker"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_ends_it(error: type[BaseException]) -> None:
    done: list[int] = []

    def work(item: int) -> None:
        done.append(item)
        time.sleep(0.001)
        if item == 20:
            raise error("no")

    with pytest.raises(error, match="no"):
        in_threads(work, range(1000))
    assert len(done) < 1000
    assert not [thread for thread in threading.enumerate() if thread.name == "cachec-worker"]


def test_without_more_threads_this_one_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    in_threads(done.append, range(100))
    assert done == list(range(100))
