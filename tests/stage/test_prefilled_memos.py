"""Memos that were filled before a run count, because the run does not read the inputs behind them."""

from __future__ import annotations

import configparser
import filecmp
import fileinput
import functools
import importlib
import importlib.util
import linecache
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy
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


def _text(path: str) -> str:
    """A file of a name that no list of names of functions holds."""
    with fileinput.input([path]) as lines:
        return "".join(lines)


def _ini(path: str) -> str:
    parser = configparser.ConfigParser()
    parser.read_string(f"[s]\nk = {_text(path)}")
    return parser["s"]["k"]


#: Ways to look at a file, none of which is in the text of what a memo wraps.
READERS: dict[str, Callable[[str], object]] = {
    "configparser": _ini,
    "fileinput": _text,
    "linecache": lambda path: (linecache.clearcache(), linecache.getline(path, 1))[1],
    "zipfile": lambda path: (zipfile.is_zipfile(path), os.stat(path).st_size),
    "os.access": lambda path: os.access(path, os.W_OK) and _text(path),
    "filecmp": lambda path: (filecmp.clear_cache(), filecmp.cmp(path, "other.txt", shallow=False))[1],
    "mmap": lambda path: numpy.memmap(path, mode="r", dtype="u1").tolist(),
    "pure": len,
}


@functools.cache
def read(how: str) -> object:
    return READERS[how]("settings.txt")


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
    Path("other.txt").write_text("1")
    for memo in (settings, level, doubled, read):
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


@pytest.mark.parametrize("how", READERS)
def test_every_memo_that_was_filled_before_and_answers_keeps_the_result_out(cache: cachec.Cache, how: str) -> None:
    stage = cache.stage(lambda how: read(how), name="stage")
    before = read(how)
    value, outcome = stage.call(how)
    assert (value, outcome.reason, outcome.stored) == (before, Reason.STALE_MEMO, False)
    assert "test_prefilled_memos.read was filled before" in outcome.detail
    assert "read.cache_clear()" in outcome.detail


def test_one_that_does_not_answer_may_be_filled(cache: cachec.Cache) -> None:
    doubled(1)
    settings()
    stage = cache.stage(lambda n: doubled(n) + len(repr(settings)) * 0, name="stage")
    assert stage.call(2)[1].stored
    assert stage.call(2)[1].reason is Reason.HIT


@pytest.mark.parametrize("how", READERS)
def test_what_stored_runs_read_for_a_memo_counts_in_those_that_it_answers(cache: cachec.Cache, how: str) -> None:
    stage = cache.stage(lambda how, n: (read(how), n), name="stage")
    other = cache.stage(lambda how: read(how), name="other")
    for n in range(3):
        assert stage.call(how, n)[1].stored
    assert other.call(how)[1].stored
    before = read(how)
    Path("settings.txt").write_text("22")
    read.cache_clear()
    for n in range(3):
        value, outcome = stage.call(how, n)
        assert value[0] == READERS[how]("settings.txt")
        assert outcome.hit is (value[0] == before)
    assert other(how) == READERS[how]("settings.txt")


def test_what_anything_else_put_into_a_memo_does_not(cache: cachec.Cache) -> None:
    stage = cache.stage(lambda how, n: (read(how), n), name="stage")
    assert stage.call("fileinput", 1)[1].stored
    read("pure")
    assert stage.call("fileinput", 2)[1].reason is Reason.STALE_MEMO


def test_a_memo_in_a_module_that_a_computed_name_leads_to(
    cache: cachec.Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    memo = "@functools.cache\ndef memo(): return open('settings.txt').read()\n"
    Path("led_to.py").write_text(f"import functools\n{memo}def f(): return memo()\n")
    stage = cache.stage(lambda name, n: importlib.import_module(name).f(), name="stage")
    assert stage.call("led" + "_to", 1)[1].stored
    assert stage.call("led" + "_to", 2)[1].reason is Reason.STALE_MEMO


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


class Held:
    def __init__(self, k: int) -> None:
        self.k = k

    @functools.cached_property
    def ten(self) -> int:
        return self.k * 10

    @functools.cached_property
    def lines(self) -> object:
        return iter([self.k])


def test_what_a_cached_property_holds_counts(cache: cachec.Cache) -> None:
    stage = cache.stage(lambda held: held.ten, name="stage")
    assigned, stale = Held(1), Held(1)
    assigned.ten = 5  # type: ignore[misc]
    assert (stage(assigned), stage(stale)) == (5, 10)
    assert stage.call(Held(1))[1].reason is Reason.HIT
    stale.k = 2
    assert stage(stale) == 10, "the program holds the old one"
    assert stage(Held(2)) == 20


def test_one_that_a_run_filled_is_no_other_object(cache: cachec.Cache) -> None:
    stage = cache.stage(lambda held: held.ten, name="stage")
    held = Held(3)
    assert stage.call(held)[1].stored
    assert vars(held) == {"k": 3, "ten": 30}
    assert stage.call(held)[1].reason is Reason.HIT
    assert stage.call(Held(3))[1].reason is Reason.HIT
    held.ten = 31  # type: ignore[misc]
    assert stage(held) == 31


def test_one_that_a_run_filled_with_what_has_no_stable_form_is_refused_next(cache: cachec.Cache) -> None:
    stage = cache.stage(lambda held: next(held.lines), name="stage")  # type: ignore[call-overload]
    held = Held(4)
    assert stage.call(held)[1].stored
    with pytest.raises(cachec.UnkeyableArgument, match="lines"):
        stage(held)


TELLS = """
import functools

class A:
    @functools.cached_property
    def p(self): return 1
def counts(a):
    was = {}
    return was + a.p
a = A()
def of_global(): return counts(a)
"""


@pytest.mark.parametrize("was", ["len(vars(a))", "('p' in a.__dict__)", "int(f'{len(a.__dict__)}')"])
def test_a_stage_that_can_tell_runs_again(cache: cachec.Cache, tmp_path: Path, was: str) -> None:
    Path("tells.py").write_text(TELLS.format("{}").replace("{}", was))
    spec = importlib.util.spec_from_file_location("tells", tmp_path / "tells.py")
    assert spec is not None
    assert spec.loader is not None
    tells = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tells)
    for stage, given in ((cache.stage(tells.counts), (tells.A(),)), (cache.stage(tells.of_global), ())):
        first, second = stage(*given), stage(*given)
        assert second == first + 1


@functools.cache
def options() -> dict[str, int]:
    return {"lr": 1}


@functools.lru_cache(4)
def factor(held: Held, *, by: int = 1) -> int:
    return held.k * by


def test_what_a_memo_keeps_counts_once_it_was_changed(cache: cachec.Cache) -> None:
    options.cache_clear()
    stage = cache.stage(lambda n: options()["lr"] * n, name="stage")
    assert (stage(1), stage(3)) == (1, 3)
    assert stage.call(1)[1].reason is Reason.HIT
    options()["lr"] = 2
    assert (stage(1), stage(3)) == (2, 6)
    assert stage.call(1)[1].reason is Reason.HIT
    options.cache_clear()
    assert stage.call(1)[1].reason is Reason.HIT
    assert stage(1) == 1
    options.cache_clear()
    options()["lr"] = 5
    assert stage(1) == 5, "also before the first run"


def test_an_object_that_a_memo_answers_for_counts_once_it_was_changed(cache: cachec.Cache) -> None:
    factor.cache_clear()
    stage = cache.stage(lambda held: factor(held, by=2), name="stage")
    held = Held(1)
    assert stage(held) == 2
    assert stage.call(held)[1].reason is Reason.HIT
    held.k = 2
    value, outcome = stage.call(held)
    assert (value, outcome.reason) == (2, Reason.STALE_MEMO), "the program has the old one"
    assert stage(Held(2)) == 4
    factor.cache_clear()
    assert stage(held) == 4
    assert stage.call(Held(2))[1].reason is Reason.HIT


def test_a_memo_of_a_file_that_changed_since_is_named_with_the_file(
    cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    settings.cache_clear()
    Path("settings.txt").write_text("1")
    stage = cache.stage(lambda n: settings() * n, name="stage")
    assert stage.call(1)[1].stored
    Path("settings.txt").write_text("2")
    value, outcome = stage.call(1)
    assert (value, outcome.reason, outcome.stored) == ("1", Reason.STALE_MEMO, False)
    assert "settings may keep results of file settings.txt, which has changed since" in outcome.detail
    assert "cache_clear()" in outcome.detail
    settings.cache_clear()
    assert stage.call(1)[0] == "2"
    assert stage.call(1)[1].reason is Reason.HIT
    settings.cache_clear()
