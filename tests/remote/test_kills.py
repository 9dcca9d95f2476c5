"""Processes that are killed while they send or fetch: what is there then is nothing, or right."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from cachec.remote.engines.base import RemoteBlob, RemoteEngine
from cachec.remote.engines.folder import SharedFolder
from tests.remote.conftest import Machine
from tests.remote.redis_server import running_redis
from tests.remote.test_sharing import Make


def killed_at(number: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> bool:
    """Fork, and kill the child at its ``number``-th call of these functions of os; whether it came to that."""
    child = os.fork()
    if not child:
        left = [number]

        def killing(call: Callable[..., object]) -> Callable[..., object]:
            def counted(*args: object, **kwargs: object) -> object:
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return counted

        for name in names:
            monkeypatch.setattr(os, name, killing(getattr(os, name)))
        try:
            run()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


CHANGES = ("link", "rename", "unlink", "makedirs", "replace", "mkdir", "open", "utime")


@pytest.mark.long
def test_a_kill_while_sending(machine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachec.remote.trie.INLINE_BYTES", 0)
    for number in range(1, 200, 2):
        url = f"file://{tmp_path}/remote{number}?timeout=60"
        one = machine(url)
        value, _ = one.call()
        one.cache.close()
        was_killed = killed_at(number, CHANGES, monkeypatch, one.push)
        found, outcome = machine(url + "&mode=read").call()
        assert not outcome.hit or found == value
        one.push()
        assert machine(url).call()[0] == value
        if not was_killed:
            break
    assert 5 < number < 150


@pytest.mark.long
def test_a_kill_while_fetching(machine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachec.remote.trie.INLINE_BYTES", 0)
    url = f"file://{tmp_path}/remote?timeout=60"
    one = machine(url)
    value, _ = one.call()
    one.push()
    for number in range(1, 400, 5):
        other = machine(url + "&mode=read")
        was_killed = killed_at(number, (*CHANGES, "write", "stat", "fstat"), monkeypatch, other.call)
        found, outcome = other.call()
        assert (found, outcome.hit) == (value, True)
        if not was_killed:
            break
    assert number > 10


@pytest.mark.long
@pytest.mark.parametrize("kind", ["folder", "redis"])
def test_eight_writers_of_one_key(machine: Make, tmp_path: Path, kind: str) -> None:
    """All put a run of the same key, with other reads, at once; each is found, and none instead of another."""
    with contextlib.ExitStack() as stack:
        url = f"file://{tmp_path}/remote"
        if kind == "redis":
            url = stack.enter_context(running_redis(tmp_path / "redis")).url
        _eight_writers(machine, f"{url}?timeout=60")


def _eight_writers(machine: Make, url: str) -> None:
    machines: list[Machine] = [machine(url) for _ in range(8)]
    values = []
    for number, each in enumerate(machines):
        (each.project / "table.txt").write_text(f"{number}")
        values.append(each.call()[0])
        each.cache.close()
    children = []
    for each in machines:
        children.append(os.fork())
        if not children[-1]:
            try:
                each.push()
            finally:
                os._exit(0)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    for number, value in enumerate(values):
        reader = machine(url)
        (reader.project / "table.txt").write_text(f"{number}")
        assert reader.call()[0] == value


def test_a_blob_that_ends_early_is_not_kept(tmp_path: Path) -> None:
    """A writer that fails in the middle leaves no name."""
    (tmp_path / "remote").mkdir()
    engine: RemoteEngine = SharedFolder(str(tmp_path / "remote"))
    with pytest.raises(FileNotFoundError):
        engine.put_blob(RemoteBlob("ab" * 32, 3, ""), str(tmp_path / "none.txt"), monotonic() + 60)
    assert not any(path.is_file() for path in (tmp_path / "remote").rglob("*"))
