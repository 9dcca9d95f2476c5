"""The process that sends pending entries: started once, gone when idle, and optional."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from cachec.remote import helper
from tests.remote.conftest import Machine
from tests.remote.server import Site
from tests.remote.test_sharing import Make


def locks(machine: Machine) -> list[Path]:
    return list((machine.store / "remote").glob("helper-*.lock"))


@pytest.fixture
def helped(machine: Make, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A machine that leaves processes behind; they end with the test."""
    monkeypatch.setenv("CACHEC_SERVER", "auto")
    one = machine()
    yield one
    for lock in locks(one):
        with lock.open("r+b") as file:
            while not _is_free(file):
                file.seek(0)
                if text := file.read():  # it says so soon
                    os.kill(int(text), signal.SIGKILL)
                    fcntl.flock(file, fcntl.LOCK_EX)  # until it is gone


def _is_free(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _children() -> set[str]:
    """The processes that this one has started and not waited for; those of other tests among them."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_what_was_run_is_sent_meanwhile(helped: Machine, machine: Make, site: Site) -> None:
    leaves, before = threading.Semaphore(0), _children()

    def answer(method: str, _path: str) -> None:
        if method == "PUT":
            leaves.release()

    site.answer = answer  # type: ignore[assignment]
    value, _ = helped.call()
    for _ in range(2):  # a node and a leaf
        assert leaves.acquire(timeout=120)
    assert helped.call(4)[1].stored
    for _ in range(2):
        assert leaves.acquire(timeout=120), "the same process sends what comes later"
    (lock,) = locks(helped)
    pid = int(lock.read_text())
    assert not helper.start(helped.remotes), "there is one"
    assert os.getsid(pid) != os.getsid(0), "no signal of this terminal reaches it"
    assert {os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)} == {"/dev/null"}
    assert _children() <= before, "neither it nor what started it is ours to wait for"
    site.answer = lambda _method, _path: None
    assert machine().call()[0] == value


def test_it_ends_where_nothing_comes(machine: Make) -> None:
    one = machine()
    assert helper.run(one.remotes, 0.0) == frozenset(), "there is no spool"
    one.call()
    assert len(helper.run(one.remotes, 0.0)) == 1
    assert one.push() == [], "it was sent"


def test_without_it_nothing_runs(machine: Make) -> None:
    one = machine()
    one.call()
    assert locks(one) == []
    assert len(one.push()) == 1


def test_it_tells_the_log_what_fails(machine: Make, tmp_path: Path) -> None:
    one = machine()
    result = subprocess.run(
        [sys.executable, "-m", "cachec.remote.helper", str(one.store), "default"],
        env={**os.environ, "CACHEC_REMOTE": "gopher://host"},
        capture_output=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, b"")
