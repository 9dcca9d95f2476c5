"""Starters, supervisors and workers: how many there are, for how long, and how they end."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import cachec
from cachec.worker import caller
from tests.worker.conftest import Script

Run = Callable[[str], list[str]]

#: A stage that says which processes it has above it.
_FAMILY = """
@cache.stage(isolated=True)
def family(n):
    meet(n)
    supervisor = os.getppid()
    return os.getpid(), supervisor, parent(supervisor)
"""


def test_calls_at_the_same_time_share_a_starter(run: Run) -> None:
    text = (
        _FAMILY.replace("(n):", "(n, more):")
        + """
from functools import partial
found = cache.map(partial(family, 3), [1, 2, 3], jobs=3)
print([len(set(each)) for each in zip(*found)], {parent(found[0][2])} == {os.getpid()})
"""
    )
    assert run(text) == ["[3, 3, 1] True"]


def test_threads_call_at_the_same_time(run: Run) -> None:
    text = """
@cache.stage(isolated=True)
def f(n):
    return meet(3)
found = []
threads = [threading.Thread(target=lambda n=n: found.append(f(n))) for n in range(3)]
for each in threads: each.start()
for each in threads: each.join()
print(found)
"""
    assert run(text) == ["[True, True, True]"]


def test_two_misses_that_are_awaited_run_at_the_same_time(run: Run) -> None:
    text = """
@cache.stage(isolated=True)
async def f(n):
    return meet(2)
async def main():
    return await asyncio.gather(f(1), f(2))
print(asyncio.run(main()))
"""
    assert run(text) == ["[True, True]"]


def test_a_task_that_is_cancelled_ends_its_worker(run: Run) -> None:
    text = """
@cache.stage(isolated=True)
async def f():
    note(os.getpid())
    time.sleep(1000)
async def main():
    task = asyncio.create_task(f())
    while not log():
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
asyncio.run(main())
print(until(lambda: is_gone(int(log()[0]))))
"""
    assert run(text) == ["True"]


def test_a_starter_ends_that_nobody_calls_and_another_takes_its_place(run: Run) -> None:
    assert caller.IDLE_SECONDS <= 60
    text = (
        _FAMILY
        + """
from cachec.worker.caller import Starters
cache._engine.tools.__dict__["starters"] = Starters(idle_seconds=0.05)
first = family(1)[2]
print(until(lambda: is_gone(first)), family(0)[2] != first)
"""
    )
    assert run(text) == ["True True"]


def test_another_environment_gets_another_starter_and_the_first_ends(run: Run) -> None:
    text = (
        _FAMILY
        + """
first = family(1)[2]
os.environ["OTHER"] = "1"
print(family(0)[2] != first, until(lambda: is_gone(first)))
"""
    )
    assert run(text) == ["True True"]


def test_workers_have_the_session_the_cgroup_and_the_limits_of_the_caller(run: Run) -> None:
    text = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
def mine():
    return os.getsid(0), os.getpgid(0), open("/proc/self/cgroup").read(), resource.getrlimit(resource.RLIMIT_NOFILE)
f = cache.stage(isolated=True)(mine)
print(f() == mine(), f.call()[1].reason.value)
"""
    assert run(text)[0].startswith("True")


def test_a_child_that_the_caller_forks_has_a_starter_of_its_own(run: Run) -> None:
    text = (
        _FAMILY
        + """
first = family(1)[2]
pid = os.fork()
if pid == 0:
    print(family(0)[2] != first, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(family(-1)[2] == first)
"""
    )
    assert run(text) == ["True", "True"]


#: A stage with a program that it has started, both named in the log.
_LONG = """
@cache.stage(isolated=True)
def long():
    child = subprocess.Popen(["sleep", "1000"])
    note(f"{os.getpid()} {os.getppid()} {parent(os.getppid())} {child.pid}")
    child.wait()
"""


@pytest.mark.parametrize("killed", [0, 1], ids=["worker", "supervisor"])
def test_where_one_is_killed_all_of_the_call_ends(run: Run, killed: int) -> None:
    text = (
        _LONG
        + f"""
def kill():
    until(lambda: len(log()) == 4)
    os.kill(int(log()[{killed}]), signal.SIGKILL)
threading.Thread(target=kill).start()
try:
    long()
except cachec.StageCrashed as error:
    print(error.returncode, all(until(lambda: is_gone(int(log()[n]))) for n in (0, 1, 3)))
"""
    )
    assert run(text) == ["-9 True"]


def test_a_call_goes_on_where_its_starter_is_killed(run: Run) -> None:
    text = """
@cache.stage(isolated=True)
def f(n):
    os.kill(parent(os.getppid()), signal.SIGKILL)
    return n
print(f(1), f(2))
"""
    assert run(text) == ["1 2"]


def test_nothing_is_left_where_the_caller_is_killed(start: Script, tmp_path: Path) -> None:
    process = start(
        _LONG + "threading.Thread(target=lambda: (until(lambda: len(log()) == 4), os.kill(os.getpid(), 9)))"
        ".start()\nlong()\n"
    )
    assert process.wait(60) == -9
    pids = (tmp_path / "log").read_text().split()
    text = "print(all(until(lambda: is_gone(int(pid))) for pid in " + repr(pids) + "))"
    assert start(text).communicate(timeout=60)[0] == "True\n"


def test_a_limit_of_memory_ends_a_run_with_what_it_started(run: Run) -> None:
    text = """
@cache.stage(isolated=True, memory="200MB")
def f(how):
    note(how)
    if how == "own":
        block = bytearray(400_000_000)
        block[:] = bytes(1) * len(block)
    else:
        subprocess.run([sys.executable, "-c", "x = b'a' * 400_000_000; import time; time.sleep(1000)"])
    time.sleep(1000)
for how in "own", "child":
    try:
        f(how)
    except cachec.StageOutOfMemory as error:
        print(error.memory, error.taken > error.memory, f.check(how).hit)
print(*log())
"""
    assert run(text) == ["200000000 True False", "200000000 True False", "own child"]


def test_a_limit_of_memory_is_a_size(tmp_path: Path) -> None:
    cache = cachec.Cache(tmp_path / "store")
    for wrong in ("8 apples", 0, -1):
        with pytest.raises(cachec.UsageError, match="memory="):
            cache.stage(isolated=True, memory=wrong)(lambda: 1)
    for wrong in (0, -1.0, "5m", True):
        with pytest.raises(cachec.UsageError, match="timeout="):
            cache.stage(isolated=True, timeout=wrong)(lambda: 1)  # type: ignore[arg-type]
    for limits in ({"timeout": 1}, {"memory": "1GB"}):
        with pytest.raises(cachec.UsageError, match="isolated=True"):
            cache.stage(**limits)(lambda: 1)  # type: ignore[call-overload]


def test_the_last_words_of_a_worker_that_crashed_are_told(run: Run) -> None:
    text = """
@cache.stage(isolated=True)
def f():
    os.write(2, b"x" * 100_000 + b"the last words")
    os.abort()
try:
    f()
except cachec.StageCrashed as error:
    print("SIGABRT" in str(error), error.stderr.endswith("the last words"))
"""
    assert run(text) == ["True True"]


def test_a_crash_leaves_a_reproducer_and_names_it(run: Run) -> None:
    text = """
@cache.stage(isolated=True)
def f(n):
    os.abort()
for folder in "", os.path.join(HERE, "repros"):
    os.environ["CACHEC_REPRO_DIR"] = folder
    stage = cachec.Cache(os.path.join(HERE, "store"), log="off").stage(isolated=True)(f.__wrapped__)
    try:
        stage(1)
    except cachec.StageCrashed as error:
        print(error.reproducer is not None and error.reproducer.exists(), str(error).splitlines()[-1].split()[0])
"""
    assert run(text) == ["False CACHEC_REPRO_DIR=FOLDER", "True to"]


def test_what_ended_a_stage_can_leave_a_pool() -> None:
    for error in (
        cachec.StageCrashed("f", -11, "words"),
        cachec.StageTimedOut("f", 1.5),
        cachec.StageOutOfMemory("f", 100, 200),
    ):
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - of this test
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
