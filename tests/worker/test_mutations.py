"""What a run changes of the caller's."""

from __future__ import annotations

import enum
import functools
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from cachec.key.canonical_forms import Forms
from cachec.worker.mutations import change, snapshot


class Model:
    memo: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.width = 4
        self.engine: Any = None
        self.inner: dict[str, int] = {"a": 1}

    @functools.cached_property
    def area(self) -> int:
        return self.width**2


def _forms() -> Forms:
    return Forms(lambda path: path == __file__, has_fills=False)


class Kinds(enum.Flag):
    A = 1
    B = 2


class Items(dict[str, int]):
    pass


def _changed(value: Any, edit: Callable[[Any], object]) -> str:
    before = snapshot(value, _forms())
    edit(value)
    return change(before, snapshot(value, _forms()), "value")


@pytest.mark.parametrize(
    ("value", "edit", "path"),
    [
        ([], lambda value: value.append(1), "value"),
        ({}, lambda value: value.update(a=1), "value"),
        ({"a": 1}, lambda value: value.update(a=2), "value"),
        ({"a": 1}, lambda value: value.clear(), "value"),
        ({1, 2}, lambda value: value.add(3), "value"),
        (Model(), lambda value: setattr(value, "width", 5), "value.width"),
        (Model(), lambda value: setattr(value, "engine", [1]), "value.engine"),
        (Model(), lambda value: setattr(value, "_more", 3), "value"),
        (Model(), lambda value: delattr(value, "width"), "value"),
        (Model(), lambda value: value.inner.update(b=2), "value.inner"),
        (Items(a=1), lambda value: value.update(a=2), "value"),
        (threading.local(), lambda value: setattr(value, "stack", []), "value"),
    ],
)
def test_a_change_is_named(value: Any, edit: Callable[[Any], object], path: str) -> None:
    assert _changed(value, edit) == path


def test_a_memo_of_a_class_is_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "memo", {})
    assert _changed(Model, lambda value: value.memo.update(a=[1])) == "value.memo"


def test_what_a_cached_property_and_a_memo_hold_is_no_change() -> None:
    assert _changed(Model(), lambda value: value.area) == ""
    assert _changed(functools.cache(abs), lambda value: value(1)) == ""


def test_a_combination_of_flags_that_is_asked_for_is_no_change() -> None:
    assert _changed(Kinds, lambda kinds: kinds.A | kinds.B) == ""
    members: Any = Kinds._value2member_map_
    assert _changed(Kinds, lambda kinds: members.update({8: kinds.A})).startswith("value")
    del members[8]
