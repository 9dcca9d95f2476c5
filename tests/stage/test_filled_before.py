"""Memos that were filled before a run, of what the run then does not look at."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

import cachec
from cachec import Reason


@functools.cache
def settings() -> str:
    return Path("settings.txt").read_text()


@functools.lru_cache(1)
def level() -> str:
    return os.environ.get("LEVEL", "")


@functools.cache
def doubled(n: int) -> int:
    return 2 * n


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cachec.Cache:
    monkeypatch.chdir(tmp_path)
    Path("settings.txt").write_text("1")
    monkeypatch.setenv("LEVEL", "1")
    for memo in (settings, level, doubled):
        memo.cache_clear()
    return cachec.Cache(tmp_path / "store", log="off", mode="on")


@pytest.mark.parametrize("memo", [settings, level])
def test_what_a_memo_was_filled_with_before_is_not_seen(
    cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch, memo: functools._lru_cache_wrapper[str]
) -> None:
    stage = cache.stage(lambda: memo(), name="stage")
    memo()
    assert stage.call()[1].reason is Reason.STALE_MEMO
    assert "cache_clear" in stage.call()[1].detail
    memo.cache_clear()
    assert stage.call()[0] == "1"
    assert stage.call()[1].reason is Reason.HIT
    Path("settings.txt").write_text("2")
    monkeypatch.setenv("LEVEL", "2")
    memo.cache_clear()
    assert stage.call()[0] == "2"
    assert stage.call()[1].reason is Reason.HIT


def test_one_that_looks_at_nothing_may_be_filled(cache: cachec.Cache) -> None:
    doubled(2)
    settings()
    stage = cache.stage(lambda n: doubled(n) + len(repr(settings)) * 0, name="stage")
    assert stage(2) == 4
    assert stage.call(2)[1].reason is Reason.HIT
