"""Whether a lock is held is an answer of the moment: stages that may ask for it are not stored."""

from __future__ import annotations

import threading
from pathlib import Path

import cachec
from cachec import Reason

LOCK = threading.Lock()


def test_whether_a_lock_is_held_is_not_stored(tmp_path: Path) -> None:
    cache = cachec.Cache(tmp_path / "store", log="off", mode="on")

    @cache.stage
    def asks() -> bool:
        return LOCK.locked()

    @cache.stage
    def tries() -> bool:
        return LOCK.acquire(blocking=False)

    assert not asks()
    with LOCK:
        assert asks()
        assert not tries()
    assert tries()
    LOCK.release()
    assert asks.call()[1].reason is Reason.UNRESOLVED_CODE
