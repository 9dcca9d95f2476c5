"""Texts that are parsed while other threads parse: CPython gh-106905."""

from __future__ import annotations

import ast
import threading
from typing import Any

import pytest

from cachec.key.code import normalized_syntax
from cachec.key.code.module_sources import SourceText
from cachec.key.code.normalized_syntax import parse

MISMATCH = "AST constructor recursion depth mismatch (before=18, after=9)"


def failing(monkeypatch: pytest.MonkeyPatch, times: int) -> list[object]:
    """Have ``ast.parse`` fail at first as it does where threads come in between; what it was asked for."""
    plain, asked = ast.parse, list[object]()

    def counting(text: Any, *args: Any) -> ast.AST:
        asked.append(text)
        if len(asked) <= times:
            raise SystemError(MISMATCH)
        return plain(text, *args)

    monkeypatch.setattr(ast, "parse", counting)
    return asked


def test_what_others_came_between_is_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = failing(monkeypatch, 3)
    assert list(SourceText("a.py", "x = 1\n").bindings) == ["x"]
    assert len(asked) == 4
    assert ast.unparse(parse("x + 1", mode="eval")) == "x + 1"


def test_an_error_that_stays_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, 1000)
    with pytest.raises(SystemError, match="mismatch"):
        parse("x = 1\n")


def test_a_wrong_text_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = failing(monkeypatch, 0)
    with pytest.raises(SyntaxError):
        parse("x = = 1\n")
    assert len(asked) == 1


def free() -> bool:
    """Whether another thread could parse now."""
    got: list[bool] = []

    def ask() -> None:
        got.append(normalized_syntax._Turn.lock.acquire(blocking=False))
        if got[0]:
            normalized_syntax._Turn.lock.release()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return got[0]


def test_one_thread_parses_at_a_time_and_may_while_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, inside = ast.parse, list[bool]()

    def counting(text: Any, *args: Any) -> ast.AST:
        inside.append(free())
        if len(inside) == 1:
            parse("y = 1\n")
        return plain(text, *args)

    monkeypatch.setattr(ast, "parse", counting)
    parse("x = 1\n")
    assert inside == [False, False]
    assert free()


def test_it_waits_for_no_thread_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalized_syntax, "_SECONDS", 0.01)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with normalized_syntax._Turn.lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        held.wait()
        assert ast.unparse(parse("x = 1\n")) == "x = 1"
    finally:
        done.set()
        thread.join()
