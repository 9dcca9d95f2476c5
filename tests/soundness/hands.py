"""Stages that have the looks of ``lookers`` done by another thread, in every way in which Python hands work on, beside
another stage that runs at the same time, against edits of the folder. The oracle is the looker itself.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import queue
import random
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import cachec
from tests.soundness import looks
from tests.soundness.runner import Report

Job = Callable[[], Any]
_Ways = dict[str, Callable[[Job], Any]]


def by_command(p: str) -> str:
    return cachec.run(["cat", f"{p}/a"], inputs=[f"{p}/a"], check=False).stdout.decode()


def by_command_on_scratch(p: str) -> str:
    with cachec.scratch() as folder:
        Path(folder, "made").write_bytes(Path(p, "a").read_bytes())
        return cachec.run(["cat", f"{folder}/made"], inputs=[f"{folder}/made"]).stdout.decode()


class _OfLibrary:
    """A function of Python's library that is the job itself: no code of a project is on its way."""

    def __init__(self, function: Callable[[str], Any], place: str) -> None:
        self._function, self._place = function, place
        self.__name__ = f"{function.__qualname__}({place})"

    def __call__(self, p: str) -> Any:
        return self._function(f"{p}/{self._place}")

    def job(self, p: str) -> Job:
        return partial(self._function, f"{p}/{self._place}")


OF_LIBRARY = [
    *(_OfLibrary(each, "new") for each in (os.path.exists, os.path.isfile, os.path.lexists, os.path.isdir)),
    *(_OfLibrary(each, "a") for each in (os.path.getsize, os.path.getmtime, os.path.islink, os.listdir)),
    *(_OfLibrary(each, "link") for each in (os.path.realpath, os.listdir)),
]

LOOKERS = [*(each for each in looks.LOOKERS if each.__name__ not in looks.REFUSED), by_command, by_command_on_scratch]


class _Served:
    """A queue of jobs, served until it is closed."""

    def __init__(self, begin: Callable[[Job], object]) -> None:
        self._plugins: queue.SimpleQueue[tuple[Future[Any], Job] | None] = queue.SimpleQueue()
        self._thread = begin(self._serve)

    def _serve(self) -> None:
        while (asked := self._plugins.get()) is not None:
            _answer(*asked)

    def __call__(self, job: Job) -> Any:
        answer: Future[Any] = Future()
        self._plugins.put((answer, job))
        return answer.result()

    def close(self) -> None:
        self._plugins.put(None)
        if isinstance(self._thread, threading.Thread):
            self._thread.join()


def _answer(answer: Future[Any], job: Job) -> None:
    try:
        answer.set_result(job())
    except BaseException as error:
        answer.set_exception(error)


def _started(function: Job) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def _by_thread(start: Callable[[Job], object], job: Job) -> Any:
    answer: Future[Any] = Future()
    start(partial(_answer, answer, job))
    return answer.result()


class _Subclass(threading.Thread):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def run(self) -> None:
        self._job()


def _by_own_pool(job: Job) -> Any:
    with ThreadPoolExecutor(2) as pool:
        return pool.submit(job).result()


def _by_own_pool_of_multiprocessing(job: Job) -> Any:
    with ThreadPool(1) as pool:
        return pool.apply(job)


def _to_thread(job: Job) -> Any:
    return asyncio.run(asyncio.to_thread(job))


def _in_executor(pool: ThreadPoolExecutor, job: Job) -> Any:
    async def main() -> Any:
        return await asyncio.get_running_loop().run_in_executor(pool, job)

    return asyncio.run(main())


def _in_loop(loop: asyncio.AbstractEventLoop, job: Job) -> Any:
    async def main() -> Any:
        return job()

    return asyncio.run_coroutine_threadsafe(main(), loop).result()


#: In a thread that works for a known run; a stage that another thread calls is in that thread's name alone.
_KNOWN: dict[str, Callable[[Job], Any]] = {
    "a thread": partial(_by_thread, _started),
    "a thread's thread": partial(_by_thread, lambda job: _started(lambda: _started(job))),
    "a subclass": partial(_by_thread, lambda job: _Subclass(job).start()),
    "a timer": partial(_by_thread, lambda job: threading.Timer(0, job).start()),
    "a pool of its own": _by_own_pool,
    "asyncio.to_thread": _to_thread,
}


@contextmanager
def _hands() -> Iterator[tuple[_Ways, _Ways, _Ways]]:
    """Ways to have a job done: by threads of known runs, by threads that are there before, by other processes."""
    with ExitStack() as held:
        # Before any thread: processes are forked.
        workers = held.enter_context(multiprocessing.get_context("fork").Pool(1))
        executor = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
        held.callback(executor.shutdown)
        executor.submit(len, "").result()
        warm = held.enter_context(ThreadPoolExecutor(4))
        other = held.enter_context(ThreadPoolExecutor(2))
        pool = held.enter_context(ThreadPool(2))
        served = held.enter_context(closing(_Served(_started)))
        served_by_job = held.enter_context(closing(_Served(warm.submit)))
        loop = asyncio.new_event_loop()
        looping = _started(loop.run_forever)
        held.callback(looping.join)
        held.callback(loop.call_soon_threadsafe, loop.stop)
        known = _KNOWN | {
            "a pool": lambda job: warm.submit(job).result(),
            "a pool's map": lambda job: next(iter(warm.map(lambda one: one(), [job]))),
            "a pool's pool": lambda job: warm.submit(lambda: other.submit(job).result()).result(),
            "a pool's thread": lambda job: warm.submit(_KNOWN["a thread"], job).result(),
            "an executor": partial(_in_executor, other),
        }
        unknown: dict[str, Callable[[Job], Any]] = {
            "_thread": partial(_by_thread, lambda job: __import__("_thread").start_new_thread(job, ())),
            "a queue": served,
            "a job's queue": served_by_job,
            "a pool's queue": lambda job: warm.submit(served_by_job, job).result(),
            "a pool of multiprocessing": lambda job: pool.apply(job),
            "a pool of multiprocessing of its own": _by_own_pool_of_multiprocessing,
            "a loop": partial(_in_loop, loop),
        }
        processes: dict[str, Callable[[Job], Any]] = {
            "a pool of processes": lambda job: workers.apply(job),
            "an executor of processes": lambda job: executor.submit(job).result(),
            "a thread and a pool of processes": lambda job: _by_thread(_started, partial(workers.apply, job)),
        }
        yield known, unknown, processes


def _stage_of(cache: cachec.Cache, hand: Callable[[Job], Any], looker: Callable[[str], Any], said: str) -> Any:
    # The pools can be no part of a key.
    job = getattr(looker, "job", None) or (lambda p: partial(looker, p))
    return cache.stage(lambda p: hand(job(p)), name=said, version="1")


@contextmanager
def _beside(cache: cachec.Cache, folder: Path) -> Iterator[None]:
    """Other runs go on: one of a thread, one of a pool's job."""
    over = threading.Event()

    def beside(n: int) -> int:
        while not over.is_set():
            time.sleep(0.0005)
        return n

    with ThreadPoolExecutor(1) as pool:
        stage = cache.stage(beside, name=f"beside {time.monotonic_ns()}", version="1")
        thread = _started(partial(stage, 1))
        job = pool.submit(stage, 2)
        try:
            yield
        finally:
            over.set()
            thread.join()
            job.result()


def run_hands(seed: int, folder: Path) -> Iterator[Report]:
    """Every looker by every hand, called as a function or as a stage, with an edit and company by chance; and again."""
    rng = random.Random(seed)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        with (
            closing(cachec.Cache(folder / "hands", log="off", mode="on")) as cache,
            warnings.catch_warnings(),
            _hands() as (known, unknown, processes),
        ):
            warnings.simplefilter("ignore")
            for turn in range(sys.maxsize):
                cases = [(looker, hand, inner) for looker in LOOKERS for hand in known for inner in (False, True)]
                cases += [(looker, hand, False) for looker in OF_LIBRARY for hand in known]
                if sys.version_info >= (3, 12):  # before, what runs in threads that were there is not seen
                    cases += [(looker, hand, False) for looker in LOOKERS for hand in unknown]
                cases += [(looker, hand, False) for looker in looks.LOOKERS for hand in processes]
                for looker, hand, is_stage in rng.sample(cases, len(cases)):
                    name, is_back, is_alone = rng.choice(list(looks.EDITS)), rng.random() < 0.5, rng.random() < 0.5
                    said = f"{looker.__name__} / {hand}{' / stage' * is_stage} / {name}{' / back' * is_back}"
                    said += " / alone" * is_alone
                    inner = cache.stage(looker, name=f"inner {said} {turn}") if is_stage else looker
                    stage = _stage_of(cache, (known | unknown | processes)[hand], inner, f"{said} {turn}")
                    with ExitStack() as company:
                        if not is_alone:
                            company.enter_context(_beside(cache, folder))
                        place = Path(company.enter_context(tempfile.TemporaryDirectory(dir=folder)), "p")
                        refused = hand in processes
                        yield looks.one(said, stage, looker, name, place, is_back=is_back, may_be_refused=refused)
    finally:
        sys.dont_write_bytecode = before
