"""Values that lead to the same objects in many ways, to very many, or to deep ones: a key is made in bounded work, or
is refused by the name of the value."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from cachec.errors import UnkeyableArgument, UnresolvedCode
from cachec.key import option_encoding
from cachec.key.code import library_objects, referenced_values

_WHEEL = """
import threading
class Kernel:
    def __init__(self, f, *more):
        self.fn = self.__wrapped__ = f
        self.more = more
        self.lock = threading.local()
        self.__globals__ = f.__globals__
    def __call__(self, *a): return self.fn(*a)
def jit(f, *more): return Kernel(f, *more)
"""
_FIRST = "import collections, dataclasses, functools, types\nimport wheel\n"
#: Chains: the first link, and one that is made of the one before in two ways.
CHAINS = {
    "lambdas": ("lambda x: x", "lambda x: {0}(x) + {0}(x)"),
    "closures": ("lambda x: x", "(lambda a, b: lambda x: a(x) + b(x))({0}, {0})"),
    "partials": ("lambda *x: x", "functools.partial(lambda a, b: a, {0}, b={0})"),
    "memos": ("lambda x: x", "functools.lru_cache(functools.partial(lambda a, b: a, {0}, {0}))"),
    "lists": ("[1]", "[{0}, {0}]"),
    "tuples": ("(1,)", "({0}, {0})"),
    "dicts": ("{{}}", "dict(a={0}, b={0})"),
    "sets": ("frozenset()", "frozenset([({0}, 1), ({0}, 2)])"),
    "deques": ("[1]", "collections.deque([{0}, {0}])"),
    "namespaces": ("1", "types.SimpleNamespace(a={0}, b={0})"),
    "objects": ("1", "O({0}, {0})"),
    "dataclasses": ("1", "D({0}, {0})"),
    "bound methods": ("1", "O({0}, {0}).m"),
    "kernels": ("wheel.jit(lambda x: x)", "wheel.jit(lambda x: {0}(x), {0}, {0})"),
    "lambdas over kernels": ("wheel.jit(lambda x: x)", "over(wheel.jit({1}), {0})"),
}
_CLASSES = """
class O:
    def __init__(self, a, b): self.a, self.b = a, b
    def m(self): return 1
@dataclasses.dataclass
class D:
    a: object
    b: object
def over(kernel, other):
    return lambda x: kernel(x) + other(x)
"""
_LENGTH = 25


def _chain(name: str, length: int) -> str:
    first, link = CHAINS[name]
    links = [f"f0 = {first.format()}"]
    links += [f"f{n} = {link.format(f'f{n - 1}', f'lambda x: f{n - 1}(x)')}" for n in range(1, length)]
    text = "\n".join(links)
    return f"{_FIRST}{_CLASSES}{text}\ndef stage(x): return f{length - 1}\n"


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_has_a_key_and_each_link_counts(project: Any, name: str) -> None:
    project.wheels = {"wheel"}
    text = _chain(name, _LENGTH)
    project.write({"wheel/__init__.py": _WHEEL, "main.py": text})
    before = project.key(has_version=False)
    first = text.splitlines().index(next(line for line in text.splitlines() if line.startswith("f0 = ")))
    lines = text.splitlines()
    other = {"1": "2", "[1]": "[2]", "(1,)": "(2,)", "{}": "{1: 2}", "frozenset()": "frozenset([1])"}
    value = lines[first].removeprefix("f0 = ")
    lines[first] = f"f0 = {other.get(value, value.replace('x: x', 'x: (x, 1)'))}"
    project.write({"main.py": "\n".join(lines) + "\n"})
    assert project.key().digest != before.digest


@pytest.mark.parametrize(
    ("first", "link"),
    [
        ("lambda x: x", "functools.lru_cache(functools.partial(lambda a: a, {0}))"),
        ("[1]", "[{0}]"),
        ("lambda x: x", "functools.partial(pow, {0})"),
        ("lambda x: x", "wheel.jit(lambda x: 1, {0})"),
        ("lambda x: x", "(lambda f: lambda x: f(x))({0})"),
        ("lambda x: x", "functools.wraps({0})(lambda x: x)"),
        ("int", "types.new_class('C', ({0},))"),
        ("(1,)", "property({0})"),
    ],
    ids=["memos", "lists", "partials", "kernels", "closures", "wrapped", "classes", "properties"],
)
def test_a_deep_chain_has_a_key_or_none(project: Any, first: str, link: str) -> None:
    project.wheels = {"wheel"}
    length = 40 if "lru_cache" in link else 300  # each memo has a key of its own
    chain = f"f = {first}\nfor _ in range({length}): f = {link.format('f')}\n"
    text = f"{_FIRST}{chain}def stage(x): return f\n"
    project.write({"wheel/__init__.py": _WHEEL, "main.py": text})
    with suppress(UnresolvedCode):
        project.key()


def test_too_many_objects_are_refused_by_name(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(referenced_values, "_MAX_OBJECTS", 100)
    project.write({"main.py": "TABLE = [[n] for n in range(101)]\ndef stage(x): return TABLE\n"})
    with pytest.raises(UnresolvedCode, match=r"main.TABLE \(builtins.list\) .* more than 100 objects"):
        project.key()
    project.write({"main.py": "TABLE = [[n] for n in range(90)] * 9\ndef stage(x): return TABLE\n"})
    project.key()


def test_a_wrapper_of_too_many_objects_is_refused_by_name(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_objects, "_MAX_OBJECTS", 100)
    project.wheels = {"wheel"}
    text = "import wheel\nK = wheel.jit(lambda x: x, *((n,) for n in range({0})))\ndef stage(x): return K\n"
    project.write({"wheel/__init__.py": _WHEEL, "main.py": text.format(10)})
    project.key()
    project.write({"main.py": text.format(101)})
    with pytest.raises(UnresolvedCode, match=r"main.K \(wheel.Kernel\)"):
        project.key()


def test_arguments_of_too_many_containers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option_encoding, "MAX_CONTAINERS", 100)
    value: Any = 1
    for _ in range(20):
        value = [value, value]
    with pytest.raises(UnkeyableArgument, match=r"x.* is one of over 100 containers"):
        option_encoding.encode(value, lambda _value, _path: None, "x")
