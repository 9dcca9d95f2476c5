"""One process at a time finds out what the others can take: the content of a compiler, at the start of a build."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cachec.base import fsio, hashing
from cachec.base.mounts import TRACKED_FILESYSTEMS, Mounts
from cachec.store import single_flight
from cachec.store.index import only_looking
from cachec.store.store import Store


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A large file that changed long ago, as far as cachec can tell."""
    monkeypatch.setattr(fsio, "SETTLE_SECONDS", -1.0)
    path = tmp_path / "compiler"
    with path.open("wb") as file:
        file.truncate(hashing.ALONE_BYTES)
    if Mounts().kind(path) not in TRACKED_FILESYSTEMS:
        pytest.skip("digests of files there are not remembered")
    return path


def test_the_first_hashes_and_the_others_take_its_word(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [Store(tmp_path / "store") for _ in range(4)]
    hashed: list[int] = []
    others_wait = threading.Event()
    count = hashing.digest_extent

    def digest_extent(fd: int, offset: int, nbytes: int) -> str:
        hashed.append(fd)
        assert others_wait.wait(60)
        return count(fd, offset, nbytes)

    monkeypatch.setattr(hashing, "digest_extent", digest_extent)
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda store=store: found.append(store.digests.of_installed(compiler)))
        for store in stores
    ]
    for thread in threads:
        thread.start()
    others_wait.set()
    for thread in threads:
        thread.join()
    assert len(hashed) == 1
    assert {*found} == {count_of(compiler)}
    assert not [path for path in (tmp_path / "store" / "locks").rglob("*") if path.is_file()]


def count_of(path: Path) -> str:
    return hashing.digest_bytes(path.read_bytes())


def test_a_question_takes_no_turn(tmp_path: Path, compiler: Path) -> None:
    with only_looking():
        assert Store(tmp_path / "store").digests.of_installed(compiler) == count_of(compiler)
    assert not (tmp_path / "store").exists()


def test_where_there_can_be_no_lock_and_where_another_takes_too_long_it_is_hashed_all_the_same(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert Store(tmp_path / "file" / "store").digests.of_installed(compiler) == count_of(compiler)
    monkeypatch.setattr(single_flight, "_PATIENCE", 0.0)
    store, told = Store(tmp_path / "store"), []

    def held(*given: Any, before: Any = store.locks.of) -> Any:
        other = Store(tmp_path / "store").locks.of(*given)
        assert other.try_acquire()
        told.append(other)
        return before(*given)

    monkeypatch.setattr(store.locks, "of", held)
    assert store.digests.of_installed(compiler) == count_of(compiler)
    assert [lock.held for lock in told] == [True]
    told[0].release()
