"""Binding against ``inspect.signature``, for every kind of parameter."""

from __future__ import annotations

import inspect

import pytest

from cachec.key.argument_binding import Binding


def plain(a, b=2):
    return a, b


def everything(a, /, b, c=3, *rest, d, e=5, **more):
    return a, b, c, rest, d, e, more


def only_keywords(*, x=1, y):
    return x, y


CALLS = [
    (plain, (1,), {}),
    (plain, (1, 5), {}),
    (plain, (), {"b": 1, "a": 2}),
    (everything, (1, 2), {"d": 4}),
    (everything, (1, 2, 3, 4, 5), {"d": 4, "z": 6}),
    (everything, (1,), {"b": 2, "d": 4, "a": 9}),
    (only_keywords, (), {"y": 2}),
    (only_keywords, (), {"y": 2, "x": 3}),
]


@pytest.mark.parametrize(("function", "args", "kwargs"), CALLS)
def test_binds_as_the_call_does(function, args, kwargs):
    found = Binding(function).bind(args, kwargs)
    expected = inspect.signature(function).bind(*args, **kwargs)
    expected.apply_defaults()
    assert found == dict(expected.arguments)
    assert list(found) == list(Binding(function).parameters), "the order of a call must not reach the key"
    assert Binding(function).call(function, found) == function(*args, **kwargs)


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (plain, (), {}),
        (plain, (1, 2, 3), {}),
        (plain, (1,), {"a": 1}),
        (plain, (1,), {"c": 1}),
        (everything, (), {"a": 1, "b": 2, "d": 3}),
        (everything, (1, 2), {}),
        (only_keywords, (1,), {"y": 2}),
        (only_keywords, (), {}),
    ],
)
def test_refuses_what_the_call_refuses(function, args, kwargs):
    with pytest.raises(TypeError):
        function(*args, **kwargs)
    with pytest.raises(TypeError, match=function.__name__):
        Binding(function).bind(args, kwargs)


def test_one_key_however_an_option_is_given(cache):
    @cache.stage
    def build(program: int, *, target: str = "cpu", options: tuple = ()) -> bytes:
        return b""

    assert build.key(1) == build.key(1, options=()) == build.key(options=(), target="cpu", program=1)
    assert build.key(1, target="gpu") != build.key(1)
