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


class Config:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def read(self) -> str:
        return Path("settings.txt").read_text()

    @functools.cached_property
    def text(self) -> str:
        return self.read()

    @functools.cached_property
    def doubled(self) -> int:
        return 2 * self.factor


config = Config(3)


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


def test_a_cached_property_counts_by_its_value_where_it_was_read_from_a_file(cache: cachec.Cache) -> None:
    stage = cache.stage(lambda: config.text, name="stage")
    vars(config).pop("text", None)
    assert config.text == "1" == stage()
    assert stage.call()[1].reason is Reason.HIT
    Path("settings.txt").write_text("2")
    assert stage.call()[1].reason is Reason.HIT, "it is kept by this process"
    vars(config).pop("text")
    assert config.text == "2" == stage()
    assert stage.call()[1].reason is Reason.HIT


def test_one_that_is_made_of_the_rest_does_not(cache: cachec.Cache) -> None:
    stage = cache.stage(lambda: config.doubled, name="stage")
    vars(config).pop("doubled", None)
    assert stage() == 6
    assert stage.call()[1].reason is Reason.HIT
    vars(config).pop("doubled")
    assert stage.call()[1].reason is Reason.HIT
