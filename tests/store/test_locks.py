"""One holder a key: among threads, among processes, after a kill and across a fork."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.store.locks import KeyLock, Locks

KEY = "ab" * 32

HOLD = """
import sys
from cachec.store.locks import Locks
lock = Locks(sys.argv[1]).of(sys.argv[2])
assert lock.acquire(10)
print("held", flush=True)
sys.stdin.read()
lock.release()
"""


@pytest.fixture
def locks(tmp_path: Path) -> Locks:
    return Locks(tmp_path / "locks")


def lock_files(locks: Locks) -> list[Path]:
    return [path for path in locks.folder.rglob("*") if path.is_file()]


def hold(locks: Locks) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, locks.folder, KEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_one_holder_at_a_time(locks: Locks) -> None:
    first, second = locks.of(KEY), locks.of(KEY)
    assert first.try_acquire()
    assert first.held
    assert not second.try_acquire()
    assert not Locks(locks.folder).of(KEY).try_acquire()  # another opened cache of the same process
    assert locks.of("cd" * 32).try_acquire()
    assert second.holder() == os.getpid()
    first.release()
    assert second.try_acquire()
    first.release()  # not held: nothing happens
    assert not first.try_acquire()


def test_one_object_is_one_acquisition(locks: Locks) -> None:
    lock = locks.of(KEY)
    assert lock.try_acquire()
    with pytest.raises(RuntimeError, match="already"):
        lock.try_acquire()


@pytest.mark.parametrize("key", ["", "../x", "a/b", ".", "..", ".hidden"])
def test_a_key_that_is_no_file_name_is_refused(locks: Locks, key: str) -> None:
    with pytest.raises(ValueError, match="can't name a lock file"):
        locks.of(key)


def test_no_lock_file_is_left_behind(locks: Locks) -> None:
    for number in range(50):
        lock = locks.of(f"{number:064}")
        assert lock.try_acquire()
        lock.release()
    assert lock_files(locks) == []


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_modes(locks: Locks, mask: int) -> None:
    old = os.umask(mask)
    try:
        lock = locks.of(KEY)
        assert lock.try_acquire()
        assert stat.S_IMODE(lock.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(locks.folder.stat().st_mode) == stat.S_IMODE(lock.path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(old)


class Clock:
    """Time that passes only in ``sleep``."""

    def __init__(self, on_sleep: Callable[[float], None] = lambda _now: None) -> None:
        self.now, self.pauses, self._on_sleep = 100.0, [], on_sleep  # type: ignore[var-annotated]

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        self._on_sleep(self.now)


def test_waiting_backs_off_tells_and_gives_up(locks: Locks) -> None:
    assert locks.of(KEY).try_acquire()
    clock, told = Clock(), []
    got = locks.of(KEY).acquire(
        30.0, lambda pid, waited: told.append((pid, waited)), sleep=clock.sleep, clock=lambda: clock.now
    )
    assert not got
    assert clock.now == pytest.approx(130.0)
    assert clock.pauses[:7] == [0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.2]
    assert max(clock.pauses) == 0.2
    assert told[0] == (os.getpid(), 0.0)
    assert [waited for _, waited in told[1:]] == sorted(waited for _, waited in told[1:])
    assert 4 <= len(told) <= 7


def test_no_wait_at_all(locks: Locks) -> None:
    assert locks.of(KEY).try_acquire()
    clock = Clock()
    assert not locks.of(KEY).acquire(0, sleep=clock.sleep, clock=lambda: clock.now)
    assert clock.pauses == []


def test_a_released_lock_is_had_by_who_waits(locks: Locks) -> None:
    first, second = locks.of(KEY), locks.of(KEY)
    assert first.try_acquire()
    clock = Clock(lambda now: first.release() if now > 101 else None)
    assert second.acquire(None, sleep=clock.sleep, clock=lambda: clock.now)
    assert second.holder() == os.getpid()
    assert not locks.of(KEY).try_acquire()


def test_a_lock_file_removed_between_open_and_lock_is_not_taken_for_the_lock(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder releases after the other has opened the file: the other must not hold a file that is gone."""
    first, second = locks.of(KEY), locks.of(KEY)
    assert first.try_acquire()
    opened = KeyLock._open

    def open_and_release(lock: KeyLock) -> int:
        fd = opened(lock)
        first.release()
        return fd

    monkeypatch.setattr(KeyLock, "_open", open_and_release)
    assert second.try_acquire()
    assert second.path.exists()
    monkeypatch.undo()
    assert not locks.of(KEY).try_acquire()


def test_release_leaves_a_lock_file_that_is_not_its_own(locks: Locks) -> None:
    """The store was deleted meanwhile, and somebody else holds a new file."""
    first, second = locks.of(KEY), locks.of(KEY)
    assert first.try_acquire()
    first.path.unlink()
    assert second.try_acquire()
    first.release()
    assert second.path.exists()
    assert not locks.of(KEY).try_acquire()
    second.release()
    assert lock_files(locks) == []


def test_a_killed_holder_blocks_nobody(locks: Locks) -> None:
    with hold(locks) as process:
        lock = locks.of(KEY)
        assert not lock.try_acquire()
        assert lock.holder() == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert lock.acquire(10)
    lock.release()
    assert lock_files(locks) == []


def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(locks: Locks) -> None:
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        lock = locks.of(KEY)
        lock.try_acquire()
        if os.fork() == 0:
            os.write(write, b"%d %d\n" % (os.getpid(), lock.held))
            time.sleep(60)
        else:
            signal.pause()  # killed below, holding the lock
        os._exit(0)
    child, held = os.read(read, 64).split()
    try:
        assert held == b"0"
        assert locks.of(KEY).holder() == parent
        assert not locks.of(KEY).try_acquire()
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        os.kill(int(child), 0)  # it lives
        assert locks.of(KEY).try_acquire()
    finally:
        os.kill(int(child), signal.SIGKILL)
        os.close(read)
        os.close(write)


def test_a_child_takes_nothing_from_its_living_parent(
    locks: Locks, in_child: Callable[[Callable[[], object]], int]
) -> None:
    lock = locks.of(KEY)
    assert lock.try_acquire()

    def child() -> None:
        assert not lock.held
        lock.release()  # the parent's: nothing happens
        assert not locks.of(KEY).try_acquire()
        other = locks.of("cd" * 32)
        assert other.try_acquire()
        other.release()

    assert in_child(child) == 0
    assert lock.held
    assert not locks.of(KEY).try_acquire()
    lock.release()
    assert locks.of(KEY).try_acquire()


def test_a_command_started_meanwhile_does_not_keep_it(locks: Locks) -> None:
    lock = locks.of(KEY)
    assert lock.try_acquire()
    with subprocess.Popen(["sleep", "60"], close_fds=False) as process:
        lock.abandon()  # as if this process had died
        assert locks.of(KEY).try_acquire()
        process.kill()


def test_eight_processes_exclude_each_other(locks: Locks, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    children = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            try:
                mine = Locks(locks.folder)
                for _ in range(25):
                    lock = mine.of(KEY)
                    assert lock.acquire(60, sleep=lambda _seconds: time.sleep(0.0005))
                    value = int(counter.read_text())
                    time.sleep(0.0005)
                    counter.write_text(str(value + 1))
                    lock.release()
            except BaseException:
                os._exit(1)
            os._exit(0)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 8
    assert counter.read_text() == "200"
    assert lock_files(locks) == []


def test_eight_threads_exclude_each_other(locks: Locks) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(25):
            lock = locks.of(KEY)
            assert lock.acquire(60, sleep=lambda _seconds: time.sleep(0.0005))
            inside.append(1)
            most.append(len(inside))
            inside.pop()
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 200


def test_a_read_only_folder_can_not_be_locked(small_file_system: Any) -> None:
    locks = Locks(small_file_system.path / "locks")
    small_file_system.set_read_only()
    with pytest.raises(StoreFault) as raised:
        locks.of(KEY).try_acquire()
    assert raised.value.fault is Fault.STORE_UNWRITABLE


def test_a_file_in_the_place_of_the_folder(locks: Locks) -> None:
    locks.folder.touch()
    with pytest.raises(StoreFault):
        locks.of(KEY).try_acquire()


# --- what is said to who looks


def test_what_runs_and_who_waits(locks: Locks) -> None:
    lock = locks.of(KEY)
    assert locks.running() == []
    assert lock.try_acquire()
    assert locks.running() == [], "it is held, and nothing runs yet"
    os.utime(lock.path, (1.0, 1.0))
    before = time.time()
    lock.note_run("pkg.\x1b[2J\nbuild of it", "cd" * 32)
    other = locks.of(KEY)
    assert not other.try_acquire()
    other.note_wait(5.0)
    other.note_wait(9.0)
    (running,) = locks.running()
    assert (running.key, running.pid, running.near) == (KEY, os.getpid(), "cd" * 32)
    assert running.stage == "pkg.\\x1b[2J\\nbuild of it"
    assert before - 0.01 <= running.since <= time.time() + 0.01
    assert list(running.waiting) == [os.getpid()]
    assert before - 5.01 <= running.waiting[os.getpid()] <= time.time() - 4.99, "the first of the two"
    assert other.holder() == os.getpid()
    assert lock.path.stat().st_mtime == 1.0, "since when it is held"
    lock.release()
    assert locks.running() == []
    other.note_wait(1.0)
    lock.note_run("late", KEY)
    assert not lock.path.exists(), "a note makes no lock"


def test_what_a_killed_process_said_is_not_what_runs(locks: Locks) -> None:
    lock = locks.of(KEY)
    lock.path.parent.mkdir(parents=True)
    lock.path.write_text(f"12\nruns 5.0 {KEY} pkg.old\nwaits 13 5.0\n")
    assert locks.running() == []
    assert lock.try_acquire()
    assert locks.running() == []
    lock.note_run("pkg.new", KEY)
    assert [(each.stage, each.waiting) for each in locks.running()] == [("pkg.new", {})]


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        (b"", []),
        (b"x\nruns 5 k s\n", []),
        (b"7\nruns five k s\n", []),
        (b"7\nruns inf k s\n", []),
        (b"7\nruns 5 k\n", []),
        (b"7\nruns 5 k s\n", ["s"]),
        (b"7\nwaits\nwaits x 5\nwaits 8 x\n\xff\nruns 5 k a b\nruns 6 k c\n", ["a b"]),
        (b"7\nruns 5 k s\n" + b"waits 8 5.0\n" * 10000, []),
    ],
)
def test_a_lock_that_says_anything(locks: Locks, text: bytes, stages: list[str]) -> None:
    lock = locks.of(KEY)
    assert lock.try_acquire()
    lock.path.write_bytes(text)
    assert [each.stage for each in locks.running()] == stages
