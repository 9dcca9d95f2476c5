"""Values that the project sets in libraries, plain values of libraries and state of the process all count."""

from __future__ import annotations

import builtins
import decimal
import functools
import json
import math
import os
import shlex
import statistics
import string
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from http.cookiejar import CookieJar
from pathlib import Path
from unittest import mock

import click
import numpy as np
import pytest
from packaging import version

import cachec
from cachec import Reason


@pytest.fixture
def cache(tmp_path: Path) -> cachec.Cache:
    return cachec.Cache(tmp_path / "store", log="off", mode="on")


def _own(*_make_weights: object, **_named: object) -> str:
    return "own"


class _Choice(click.Choice):  # type: ignore[type-arg]
    pass


class _Encoder(json.JSONEncoder):
    pass


class _Version:
    def __init__(self, text: str) -> None:
        self.text = text


class _Call:
    def __call__(self, *_given: object) -> str:
        return "own"

    def method(self, *_given: object) -> str:
        return "own method"


_fill = textwrap.fill


def _own_text(text: str) -> str:
    return "own"


def _inside() -> str:
    import textwrap

    return textwrap.dedent(" x")


def _inside_by_name() -> str:
    from textwrap import fill

    return fill("x y", 1)


REPLACED: dict[str, tuple[Callable[[], object], object, str, object]] = {
    "function": (lambda: json.dumps([1]), json, "dumps", _own),
    "compiled function": (lambda: math.floor(1.5), math, "floor", _own),
    "function of a module's module": (lambda: os.path.commonpath(["a/b", "a/c"]), os.path, "commonpath", _own),
    "imported inside": (_inside, textwrap, "dedent", _own),
    "imported inside by its name": (_inside_by_name, textwrap, "fill", _own),
    "object": (lambda: json.dumps([1]), json, "dumps", _Call()),
    "object, imported inside": (_inside, textwrap, "dedent", _Call()),
    "method of an object": (lambda: json.dumps([1]), json, "dumps", _Call().method),
    "partial": (lambda: json.dumps([1]), json, "dumps", functools.partial(_own, 1)),
    "class": (lambda: json.JSONEncoder(), json, "JSONEncoder", _own),
    "constant": (lambda: string.digits, string, "digits", "x"),
    "limit": (lambda: sys.maxsize, sys, "maxsize", 5),
    "method": (lambda: click.Choice(["a"]).to_info_dict(), click.Choice, "to_info_dict", _own),
    "inherited method": (lambda: _Choice(["a"]).to_info_dict(), click.Choice, "to_info_dict", _own),
    "class by a class": (lambda: json.JSONDecoder.__name__, json, "JSONDecoder", _Choice),
    "attribute of a class": (lambda: click.Choice(["a"]).name, click.Choice, "name", "own"),
    "class as an attribute": (
        lambda: CookieJar.magic_re is int,
        CookieJar,
        "magic_re",
        int,
    ),
    "attribute of a base": (lambda: _Encoder().encode([1, 2]), json.JSONEncoder, "item_separator", ";"),
    "default": (lambda: textwrap.fill("a b c"), textwrap.fill, "__defaults__", (1,)),
    "default by name": (lambda: _fill("a b c"), textwrap.fill, "__defaults__", (1,)),
    "code": (lambda: textwrap.dedent(" x"), textwrap.dedent, "__code__", _own_text.__code__),
    "code that a function uses": (lambda: type(version.parse("1")).__name__, version, "Version", _Version),
    "function that a function uses": (lambda: shlex.join(["a b"]), shlex, "quote", _own),
    "attribute that was not there": (lambda: getattr(json, "flag", 0), json, "flag", 1),
    "whether there is an attribute": (lambda: hasattr(json, "flag"), json, "flag", object()),
    "builtin": (lambda: hasattr(builtins, "flag"), builtins, "flag", 1),
    "method of a base": (
        lambda: click.Choice(["a"]).split_envvar_value("a"),
        click.ParamType,
        "split_envvar_value",
        _own,
    ),
}


@pytest.mark.parametrize("case", REPLACED)
def test_what_takes_a_librarys_place_counts(cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    body, owner, name, value = REPLACED[case]
    stage = cache.stage(lambda: str(body()), name="stage")
    before = stage()
    assert stage.call()[1].reason is Reason.HIT
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, value, raising=False)
        assert stage() == str(body()) != before
        assert stage.call()[1].reason is Reason.HIT
    assert stage() == before
    assert stage.call()[1].reason is Reason.HIT


MOCKED: dict[str, tuple[Callable[[], object], object, str]] = {
    "function": (lambda: json.dumps([1]), json, "dumps"),
    "imported inside": (_inside, textwrap, "dedent"),
    "method": (lambda: click.Choice(["a"]).to_info_dict(), click.Choice, "to_info_dict"),
    "function that a function uses": (lambda: shlex.join(["a b"]), shlex, "quote"),
}


@pytest.mark.parametrize("version", [None, "1"])
@pytest.mark.parametrize("autospec", [None, True])
@pytest.mark.parametrize("case", MOCKED)
def test_what_a_mock_returns_is_not_stored(
    cache: cachec.Cache, case: str, autospec: bool | None, version: str | None
) -> None:
    body, owner, name = MOCKED[case]
    stage = cache.stage(lambda: str(body()), name="stage", version=version)
    for value in ("one", "two"):
        with mock.patch.object(owner, name, autospec=autospec, return_value=value):
            assert stage.call() == (value, mock.ANY)
            assert stage.call()[1].reason is Reason.UNRESOLVED_CODE
    assert stage() == str(body())
    assert stage.call()[1].reason is Reason.HIT


def _zone(name: str) -> None:
    os.environ["TZ"] = name
    time.tzset()


Dec = decimal.Decimal


def _divided() -> object:
    try:
        return 1 / np.zeros(1)
    except FloatingPointError:
        return "raised"


STATES: dict[str, tuple[Callable[[], object], Callable[[], object], Callable[[], object]]] = {
    "time zone": (lambda: time.strftime("%H", time.localtime(0)), lambda: _zone("JST-9"), lambda: _zone("UTC")),
    "decimal context": (
        lambda: decimal.Decimal(1) / 3,
        lambda: decimal.getcontext().__setattr__("prec", 5),
        lambda: decimal.setcontext(decimal.Context()),
    ),
    "decimal context by another name": (
        lambda: Dec(1) / 3,
        lambda: decimal.getcontext().__setattr__("prec", 5),
        lambda: decimal.setcontext(decimal.Context()),
    ),
    "numpy's errors": (
        _divided,
        lambda: np.seterr(divide="raise"),
        lambda: np.seterr(divide="warn"),
    ),
    "arguments": (lambda: sys.argv[-1], lambda: sys.argv.append("more"), lambda: sys.argv.remove("more")),
    "scratch": (
        lambda: tempfile.gettempdir(),
        lambda: setattr(tempfile, "tempdir", "/var/tmp"),
        lambda: setattr(tempfile, "tempdir", None),
    ),
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("state", STATES)
def test_state_of_the_process_counts_where_code_asks_for_it(
    cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    body, change, back = STATES[state]
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    stage = cache.stage(lambda: str(body()), name="stage")
    idle = cache.stage(lambda: "idle", name="idle")
    before, _ = stage(), idle()
    assert stage.call()[1].reason is Reason.HIT
    change()
    try:
        assert stage() == str(body()) != before
        assert idle.call()[1].reason is Reason.HIT
    finally:
        back()
    assert stage() == before
    assert stage.call()[1].reason is Reason.HIT


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_decimals_and_arrays_answer_by_state_wherever_they_come_from(cache: cachec.Cache) -> None:
    thirds = [decimal.Decimal(1), decimal.Decimal(2), decimal.Decimal(2)]
    held = cache.stage(lambda: str(statistics.mean(thirds)), name="held")
    given = cache.stage(lambda numbers: str(statistics.mean(numbers["k"])), name="given")
    divided = cache.stage(_over, name="divided")
    calls: list[Callable[[], tuple[str, cachec.Outcome]]] = [
        held.call,
        lambda: given.call({"k": thirds}),
        lambda: divided.call(np.zeros(1)),
    ]
    before = [call()[0] for call in calls]
    assert all(call()[1].hit for call in calls)
    with decimal.localcontext(prec=5), np.errstate(divide="raise"):
        assert [call()[0] for call in calls] == ["1.6667", "1.6667", "raised"]
    assert [call()[0] for call in calls] == before
    assert all(call()[1].hit for call in calls)


def _over(divisor: object) -> str:
    try:
        return str(1 / divisor)  # type: ignore[operator]
    except FloatingPointError:
        return "raised"
