"""``cache.map``: one stage for many inputs."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import cachec
from cachec.stage import progress
from tests.worker.conftest import Script

Run = Callable[[str], list[str]]

_SQUARE = """
@cache.stage(isolated=True)
def square(n):
    return n * n, os.getpid()
"""


def test_results_come_in_the_order_of_the_inputs_and_are_stored(run: Run) -> None:
    text = _SQUARE + "found = cache.map(square, [3, 1, 2]); print([value for value, _ in found])\n"
    text += "print(os.getpid() in {pid for _, pid in found}, [square.check(n).hit for n in (1, 2, 3)])\n"
    assert run(text) == ["[9, 1, 4]", "False [True, True, True]"]
    assert run(text) == ["[9, 1, 4]", "False [True, True, True]"]


def test_misses_run_at_the_same_time(run: Run) -> None:
    text = "@cache.stage(isolated=True)\ndef f(n):\n    return meet(2)\nprint(cache.map(f, [1, 2], jobs=2))\n"
    assert run(text) == ["[True, True]"]


def test_no_more_run_than_jobs_allow(run: Run) -> None:
    text = """
@cache.stage(isolated=True)
def f(n):
    note("begin"); time.sleep(0.01); note("end")
cache.map(f, range(3), jobs=1)
print(*log())
"""
    assert run(text) == ["begin end begin end begin end"]


def test_equal_inputs_run_once(run: Run) -> None:
    text = """
@cache.stage(isolated=True)
def f(values):
    subprocess.run(["true"])
    os.write(2, b"ran\\n")
    return len(values), os.getpid()
found = cache.map(f, [[1, 2], [1, 2], [1], [1, 2]], jobs=4)
print([size for size, _ in found], len({pid for _, pid in found}))
"""
    assert run(text) == ["[2, 2, 1, 2] 2"]


def test_the_first_input_that_raises_is_the_one_that_is_raised(run: Run) -> None:
    text = """
@cache.stage(isolated=True)
def f(n):
    if n in (2, 4):
        raise ValueError(n)
    return n
try:
    cache.map(f, range(6), jobs=1)
except ValueError as error:
    print(error, [f.check(n).hit for n in range(6)])
"""
    assert run(text) == ["2 [True, True, False, False, False, False]"]


def test_the_state_of_the_calling_thread_is_that_of_the_workers(run: Run) -> None:
    text = """
from contextvars import ContextVar
LOCAL, VARIABLE = threading.local(), ContextVar("variable", default=0)
@cache.stage(isolated=True)
def f(n):
    return n + LOCAL.value + VARIABLE.get()
@cache.stage(isolated=True)
async def g(n):
    return n + LOCAL.value + VARIABLE.get()
LOCAL.value = 10; VARIABLE.set(100)
print(cache.map(f, [1, 2], jobs=2), asyncio.run(g(3)))
"""
    assert run(text) == ["[111, 112] 113"]


def test_what_cannot_be_isolated_runs_here_one_after_another(run: Run) -> None:
    text = """
@cache.stage(isolated=True)
def f(n):
    counts.append(n)
    return os.getpid(), threading.current_thread() is threading.main_thread()
counts = []
print(set(cache.map(f, [1, 2, 3])) == {(os.getpid(), True)}, sorted(counts))
"""
    assert run(text) == ["True [1, 2, 3]"]


def test_an_interrupt_ends_the_workers(start: Script, tmp_path: Path) -> None:
    process = start("""
@cache.stage(isolated=True)
def f(n):
    child = subprocess.Popen(["sleep", "1000"])
    note(f"{os.getpid()} {child.pid}")
    child.wait()
try:
    cache.map(f, range(5), jobs=2)
except KeyboardInterrupt:
    print("interrupted", len(log()), all(until(lambda: is_gone(int(pid))) for pid in log()))
""")
    log = tmp_path / "log"
    end = time.monotonic() + 60
    while (not log.exists() or len(log.read_text().splitlines()) < 2) and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted 4 True\n"


def test_stages_that_are_not_isolated_run_here(tmp_path: Path) -> None:
    cache = cachec.Cache(tmp_path / "store", log="off")
    ran: list[int] = []

    @cache.stage(ignore=["ran"])
    def add(ran: list[int], n: int, more: int = 0) -> int:
        ran.append(n)
        return n + more

    assert cache.map(partial(add, ran, more=10), [1, 2, 1]) == [11, 12, 11]
    assert ran == [1, 2]


def test_an_end_of_iteration_is_the_stages_own(tmp_path: Path) -> None:
    cache = cachec.Cache(tmp_path / "store", log="off")

    @cache.stage
    def ends(n: int) -> int:
        raise StopIteration(n)

    with pytest.raises(StopIteration, match="7"):
        cache.map(ends, [7])


def test_what_it_can_not_call_is_refused(tmp_path: Path) -> None:
    cache = cachec.Cache(tmp_path / "store", log="off")

    @cache.stage
    async def later(n: int) -> int:
        return n

    @cache.stage
    def now(n: int) -> int:
        return n

    with pytest.raises(cachec.UsageError, match="no stage"):
        cache.map(len, ["a"])
    with pytest.raises(cachec.UsageError, match="async def"):
        cache.map(later, [1])
    with pytest.raises(cachec.UsageError, match="jobs=0"):
        cache.map(now, [1], jobs=0)


def test_progress_says_how_many_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(progress, "way_to_show", lambda *_: (shown.append, 0.001))
    cache = cachec.Cache(tmp_path / "store")

    @cache.stage(ignore=["shown"])
    def slow(shown: list[str], n: int) -> int:
        before = len(shown)
        while len(shown) == before:
            time.sleep(0.001)
        return n

    slow(shown, 1)
    shown.clear()
    cache.map(partial(slow, shown), [1, 2, 3])
    assert re.match(rf"cachec: {re.escape(slow.options.name)}: 1 of 3, [01] running, ", shown[0])  # the next may wait
    assert any(": 2 of 3, 1 running, " in line for line in shown)
    assert shown[-1] == ""
