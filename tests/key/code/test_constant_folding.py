"""What expressions of a module come to, held against what Python makes of them."""

from __future__ import annotations

import ast
import json
import math
import os
from typing import Any

import pytest

from cachec.key.code.constant_folding import NotConstant, fold, is_determined, same

SPACE: dict[str, Any] = {"K": 3, "F": 0.5, "T": {"a": [1]}, "math": math, "f": len}

TOLD = (
    "1, K * 2, -K, K << 2, K ** 3, K / 7, not K, math.pi * F, (K, [F], {'a': K}), {1, 2}, {'f': f}, T, "
    "dict(a=K), list((1, 2)), len('abc'), frozenset([1]), int('7'), str(K)"
)


@pytest.mark.parametrize("node", [ast.unparse(each) for each in ast.parse(TOLD, mode="eval").body.elts])  # type: ignore[attr-defined]
def test_an_expression_comes_to_what_python_makes_of_it(node: str) -> None:
    assert same(fold(ast.parse(node, mode="eval").body, SPACE), eval(node, dict(SPACE)))


@pytest.mark.parametrize(
    "node",
    ["f(1)", "missing", "K.real", "K ** 1000", "1 / 0", "[K] * 10", "dict(a=f)", "open('x')", "{**T}", "int('x')"],
)
def test_what_runs_something_or_grows_is_untold(node: str) -> None:
    with pytest.raises(NotConstant):
        fold(ast.parse(node, mode="eval").body, SPACE)


DIFFERENT: list[tuple[Any, Any]] = [
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    ([1], (1,)),
    ({"a": 1}, {"a": 2}),
    ({1: 1, 2: 2}, {2: 2, 1: 1}),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_differs(one: Any, other: Any) -> None:
    assert not same(one, other)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(a=1): return a", True),
        ("def f(a=K): return a", False),
        ("class A:\n    'doc'\n    x: int = 1\n    def m(self): return 2", True),
        ("class A:\n    x = K", False),
        ("@deco\ndef f(): pass", True),
        ("@deco(K)\ndef f(): pass", False),
        ("l = logging.getLogger(__name__)", True),
        ("l = other.get('x')", False),
        ("try:\n    import a\nexcept ImportError:\n    a = None", True),
        ("if K:\n    V = 1", False),
        ("V = 1\nV = 2", False),
    ],
)
def test_what_a_text_tells(text: str, told: bool) -> None:
    assert is_determined(ast.parse(text).body, {"logging"}, None, {}) == told


@pytest.mark.parametrize(
    "text",
    [
        "def f(a=json.loads, *, b=(1, os.sep), c=2): return a",
        "class A:\n    def m(self, a=1, b=json.loads): return a\n    @staticmethod\n    def s(*, a=os.sep): return a",
        "def f(a=K + 1): return a",
    ],
)
def test_defaults_are_told_where_they_are_what_they_come_to_now(text: str) -> None:
    namespace: dict[str, Any] = {"json": json, "os": os, "K": 4}
    exec(text, namespace)
    body = ast.parse(text).body

    def told(**now: object) -> bool:
        return is_determined(body, set(), namespace[body[0].name], namespace | now)

    assert told()
    assert not is_determined(body, set(), None, namespace), "what it is can't be told"
    assert not told(json=os, os=json, K=5)
