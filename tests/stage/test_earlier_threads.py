"""Threads that were there before a run: what a stage has one of them do is seen, or the result is not stored."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import cachec

Ask = Callable[[Callable[[], bool]], bool]


@contextmanager
def _loop() -> Iterator[Ask]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def ask(job: Callable[[], bool]) -> bool:
        async def go() -> bool:
            return job()

        return asyncio.run_coroutine_threadsafe(go(), loop).result()

    yield ask
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@contextmanager
def _queue() -> Iterator[Ask]:
    jobs: queue.Queue[tuple[Callable[[], bool], Future[bool]] | None] = queue.Queue()

    def work() -> None:
        while (job := jobs.get()) is not None:
            job[1].set_result(job[0]())

    thread = threading.Thread(target=work)
    thread.start()

    def ask(job: Callable[[], bool]) -> bool:
        done: Future[bool] = Future()
        jobs.put((job, done))
        return done.result()

    yield ask
    jobs.put(None)
    thread.join()


@pytest.mark.parametrize("started", [_loop, _queue])
def test_what_a_stage_gives_an_earlier_thread_is_not_missed(
    started: Callable[[], Iterator[Ask]], tmp_path: Path, cache: cachec.Cache
) -> None:
    flag = tmp_path / "flag"

    @cache.stage(ignore=["ask"])
    def stage(ask: Ask, path: str) -> bool:
        return ask(lambda: os.path.exists(path))

    with started() as ask:  # type: ignore[attr-defined]
        assert not stage(ask, str(flag))
        flag.touch()
        assert stage(ask, str(flag))


@pytest.mark.parametrize("started", [_loop, _queue])
def test_an_earlier_thread_that_gets_no_work_keeps_nothing_out(
    started: Callable[[], Iterator[Ask]], cache: cachec.Cache
) -> None:
    @cache.stage
    def stage(n: int) -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(int, str(n)).result()

    with started():  # type: ignore[attr-defined]
        assert stage(3) == 3
        assert stage.call(3)[1].hit
