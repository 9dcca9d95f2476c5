"""Other processes see a stage that runs, and the processes that wait for it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import cachec
from cachec.stage import engine
from cachec.store.locks import KeyLock
from cachec.views.running import running


def test_a_run_is_seen_by_who_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, begin = os.pipe()
    told, tell = os.pipe()
    waits = threading.Event()
    note = KeyLock.note_wait

    def noted(lock: KeyLock, waited: float) -> None:
        note(lock, waited)
        waits.set()

    monkeypatch.setattr(engine, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr(KeyLock, "note_wait", noted)
    cache = cachec.Cache(tmp_path / "store", log="off")

    @cache.stage(version="1")
    def lower(number: int) -> int:
        os.write(begin, b".")
        os.read(told, 1)
        return number

    threads = [threading.Thread(target=lower, args=(1,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    os.read(begun, 1)
    assert waits.wait(60)
    (row,) = running(cache.store, now=2e9)
    assert row["stage"].endswith("lower")
    assert row["pid"] == os.getpid()
    assert row["last"] is None
    assert [each["pid"] for each in row["waiting"]] == [os.getpid()]
    os.write(tell, b".")
    for thread in threads:
        thread.join()
    assert running(cache.store, now=2e9) == []

    thread = threading.Thread(target=lower, args=(2,))
    thread.start()
    os.read(begun, 1)
    assert running(cache.store, now=2e9)[0]["last"] is not None, "how long the nearest took"
    os.write(tell, b".")
    thread.join()
    for fd in (begun, begin, told, tell):
        os.close(fd)
