"""Globals without a form of their own: the call counts by a pickle of them, or runs uncached with a reason."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from contextlib import closing
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import cachec
from cachec import Reason

from .conftest import Program

#: What an installed library may hold: mutable settings as of ml_collections, a mesh of devices, a holder of a cache.
_LIBRARY = """
import threading
class Raising:
    def __getattribute__(self, name): raise ValueError("not set up: " + name)
class Compared(type):
    def __eq__(cls, other): raise ValueError("compared")
    __hash__ = type.__hash__
class Instance(metaclass=Compared): x = 1
class Proxy:
    __class__ = property(lambda self: 1 / 0)
class ConfigDict:
    def __init__(self, **fields):
        object.__setattr__(self, "_fields", dict(fields)); object.__setattr__(self, "_locked", False)
    def __getattr__(self, name):
        try: return self._fields[name]
        except KeyError: raise AttributeError(name) from None
    def __setattr__(self, name, value): self._fields[name] = value
    def __getstate__(self): return dict(self.__dict__)
    def __setstate__(self, state): self.__dict__.update(state)
class Device:
    def __reduce__(self): raise TypeError("cannot pickle a device")
class Mesh:
    def __init__(self, *names): self.names, self.devices = names, [Device()]
class Holder:
    def __init__(self, n): self.n, self.table = n, {n: n}
    def __getstate__(self): return {"n": self.n}
class Locked:
    def __init__(self, n): self.n, self.lock = n, threading.Lock()
class Named:
    def __init__(self, n): self.n = n
    def __reduce__(self): return "NAMED"
NAMED = Named(1)
class Sets:
    def __init__(self, *items): self.items = {*items, "a", "b", "c", "d"}; self.again = frozenset(map(str, items))
class Node:
    def __init__(self): self.me, self.text = self, "a text" + "" ; self.other = "a " + self.text[2:]
class Called:
    def __init__(self, f): self.f = f
    def __getstate__(self): return vars(self)
class Slots:
    __slots__ = ("a", "b")
    def __init__(self, a): self.a = a
"""
#: Globals by what is special about them: statement, an edit of it, whether a call is stored.
VALUES = {
    "settings": ("X = lib.ConfigDict(width=3, act='relu', inner=lib.ConfigDict(a=1))", ("a=1", "a=2"), True),
    "a lock inside": ("X = lib.Locked(3)", ("3", "4"), True),
    "sets of texts": ("X = lib.Sets('q', 'w', 'e', 'r')", ("'e'", "'f'"), True),
    "a circle": ("X = lib.Node()\nX.size = 1", ("size = 1", "size = 2"), True),
    "slots": ("X = lib.Slots('a')", ("'a'", "'b'"), True),
    "code inside": ("def f(): return 1\nX = lib.Called(f)", ("return 1", "return 2"), True),
    "a lambda inside": ("X = lib.Called([lambda: 1])", (": 1", ": 2"), True),
    "in a table": ("X = {'a': [lib.Slots(1)], 'b': lib.Slots(2)}", ("(2)", "(3)"), True),
    "in a default": ("X = lib.Slots(3)\ndef f(x=X): return x", ("(3)", "(4)"), True),
    "a generator of numbers": ("import numpy\nX = numpy.random.default_rng(3)", ("(3)", "(4)"), True),
    "settings of a file": (
        "import configparser\nX = configparser.ConfigParser()\nX.read_string('[a]\\nk = 3')",
        ("k = 3", "k = 4"),
        True,
    ),
    "a partial inside": ("import functools\nX = lib.Called(functools.partial(int, base=3))", ("=3", "=4"), True),
    "devices": ("X = lib.Mesh('data')", ("data", "model"), False),
    "state that the pickle leaves out": ("X = lib.Holder(3)", ("3", "4"), False),
    "a pickle that is a name": ("X = lib.Named(3)", ("3", "4"), False),
    "an iterator": ("X = iter([1, 2])", ("1", "2"), False),
    "a file": ("X = open(__file__)", ("X", "X"), False),
    "a context variable": ("import contextvars\nX = contextvars.ContextVar('x')", ("'x'", "'y'"), False),
    "a template": ("import jinja2\nX = jinja2.Template('a {{ b }}')", ("a {{", "c {{"), True),
    "an environment of templates": (
        "import jinja2\nX = jinja2.Environment(loader=jinja2.DictLoader({'a': 'text'}))",
        ("text", "other"),
        False,
    ),
    "each attribute raises": ("X = lib.Raising()", ("X", "X"), False),
    "an attribute raises, in a list": ("X = [1, lib.Raising()]", ("X", "X"), False),
    "a metaclass that raises": ("X = lib.Instance()", ("X", "X"), False),
    "its __class__ raises": ("X = lib.Proxy()", ("X", "X"), False),
    "a thread": ("import threading\nX = threading.Thread(target=print)", ("print", "len"), False),
}
_RUN = """
import json
from stages import STAGES
ended = [each.call() for each in STAGES]
print(json.dumps([[value, outcome.reason.value, outcome.detail] for value, outcome in ended]))
"""


def _write(folder: Path, values: list[str]) -> Path:
    installed = folder / "site-packages"
    (installed / "lib-1.dist-info").mkdir(parents=True, exist_ok=True)
    (installed / "lib.py").write_text(_LIBRARY)
    (installed / "lib-1.dist-info/RECORD").write_text("lib.py,,\nlib-1.dist-info/RECORD,,\n")
    (installed / "lib-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: lib\nVersion: 1\n")
    (folder / "pyproject.toml").write_text("")
    imports = "import cachec\ncache = cachec.Cache()\nSTAGES = []\n"
    for number, text in enumerate(values):
        stage = "import cachec\nimport lib\ncache = cachec.Cache()\n@cache.stage\ndef stage():\n    return X is None\n"
        (folder / f"value{number}.py").write_text(stage.replace("@", f"{text}\n@"))
        imports += f"import value{number}\nSTAGES.append(value{number}.stage)\n"
    head = "import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'site-packages'))\n"
    (folder / "stages.py").write_text(head + imports)
    (folder / "run.py").write_text(_RUN)
    return folder / "run.py"


def test_no_value_ends_a_program(tmp_path: Path, program: Program) -> None:
    store = str(tmp_path / "store")
    script = _write(tmp_path, [text for text, _, _ in VALUES.values()])
    first, second = (json.loads(program(script, CACHEC_DIR=store, PYTHONHASHSEED=seed)) for seed in "12")
    for (name, (_, _, is_stored)), once, again in zip(VALUES.items(), first, second, strict=True):
        if is_stored:
            assert (once[:2], again[:2]) == ([False, "miss:first-run"], [False, "hit"]), (name, once, again)
        else:
            assert once[:2] == again[:2] == [False, "bypass:unresolved-code"], (name, once)
            assert ".X (" in once[2], name
    edited = [text.replace(*edit) for text, edit, _ in VALUES.values()]
    third = json.loads(program(_write(tmp_path, edited), CACHEC_DIR=store))
    for name, (_, _, is_stored), last in zip(VALUES, VALUES.values(), third, strict=True):
        assert last[1] == ("miss:code-changed" if is_stored else "bypass:unresolved-code"), (name, last)


TABLE = iter([1])


def test_a_call_without_a_key_says_so_wherever_it_is_asked(tmp_path: Path) -> None:
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage
        def stage() -> int:
            return 3 if TABLE else 4

        @cache.stage(version="1")
        def around() -> int:
            return stage() + 1

        value, outcome = stage.call()
        assert (value, outcome.reason, outcome.stored) == (3, Reason.UNRESOLVED_CODE, False)
        assert "TABLE (builtins.list_iterator) has no stable form" in outcome.detail
        assert "version=" in outcome.detail
        assert stage.check().reason is Reason.UNRESOLVED_CODE
        assert stage.why().startswith("bypass:unresolved-code: ")
        with pytest.raises(cachec.UnresolvedCode, match="TABLE"):
            stage.key()
        assert stage() == 3
        # What a call without a key reads is in no trace, so the stage around it is not stored either.
        assert around.call()[1].reason is Reason.UNRESOLVED_CODE
        assert around.call()[0] == 4
    with closing(cachec.Cache(tmp_path / "store", log="off", mode="require")) as cache:
        required = cache.stage(stage.__wrapped__)
        with pytest.raises(cachec.CacheMissError, match="bypass:unresolved-code"):
            required()


class _Raising:
    def __getattribute__(self, name: str) -> Any:
        raise ValueError(f"not set up: {name}")


class _Compared(type):
    def __eq__(cls, other: object) -> bool:
        raise ValueError("compared")

    __hash__ = type.__hash__


class _Instance(metaclass=_Compared):
    pass


class _Proxy:
    __class__ = property(lambda self: dict)  # type: ignore[assignment]


#: Arguments whose own code raises, or says that they are of another class, and whether a key can be made of them.
_RAISING: dict[str, tuple[Callable[[], Any], bool]] = {
    "each attribute raises": (_Raising, False),
    "inside a list": (lambda: [1, _Raising()], False),
    "inside a dict": (lambda: {"a": _Raising()}, False),
    "a metaclass that raises": (_Instance, False),
    "a proxy of a dict": (_Proxy, True),
}


@pytest.mark.parametrize("name", _RAISING)
def test_what_an_argument_raises_never_leaves_a_call(cache: cachec.Cache, name: str) -> None:
    make, is_stored = _RAISING[name]
    value = make()

    @cache.stage
    def stage(x: Any) -> int:
        return 3

    wanted = Reason.FIRST_RUN if is_stored else Reason.UNRESOLVED_CODE
    asked = stage.check(value)
    assert asked.reason is wanted
    assert stage.why(value).startswith(wanted.value)
    result, outcome = cache.call(stage, value)
    assert (result, outcome.reason) == (3, wanted)
    if not is_stored:
        assert "argument x (" in outcome.detail
        assert "raised ValueError('" in outcome.detail
        assert "argument x (" in asked.detail


class _AutoDict(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        value = self[name] = _AutoDict()
        return value

    def __getattr__(self, name: str) -> Any:
        return self[name]


class _Asked:
    def __init__(self) -> None:
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.names.append(name)
        return 1


class _Called(_Asked):
    def __call__(self) -> int:
        return 1


@dataclasses.dataclass
class _Record:
    a: int = 1
    b: int = dataclasses.field(init=False)

    def __getattr__(self, name: str) -> Any:
        self.__dict__[name] = 1
        return 1


#: Arguments whose class makes an attribute or an item of each name that is asked for.
_MAKING: dict[str, Callable[[], Any]] = {
    "a dict": lambda: _AutoDict(a=1),
    "in a list": lambda: [_AutoDict(a=1)],
    "an object": _Asked,
    "a callable object": _Called,
    "a record": _Record,
}


@pytest.mark.parametrize("name", _MAKING)
def test_a_call_changes_no_argument(cache: cachec.Cache, name: str) -> None:
    value = _MAKING[name]()
    before = copy.deepcopy(_held(value))

    @cache.stage
    def stage(x: Any) -> int:
        return 3

    for wanted in (Reason.FIRST_RUN, Reason.HIT):
        stage.check(value)
        assert cache.call(stage, value)[1].reason is wanted
        assert _held(value) == before


def _held(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_held, value)]
    return dict(value) if isinstance(value, dict) else vars(value)


_COUNTING = """
import cachec
from cachec.key.code import referenced_values
import large
encode, counted = referenced_values.ReferencedValues._encode, []
def counting(self, value, name, *more, **named):
    counted.append(name)
    return encode(self, value, name, *more, **named)
referenced_values.ReferencedValues._encode = counting
for _ in range(2):
    outcome = large.stage.call()[1]
    print(outcome.reason.value, counted.count("large.TABLE"))
    counted.clear()
"""


def test_a_large_value_is_looked_at_a_few_times_in_a_call(tmp_path: Path, program: Program) -> None:
    table = "TABLE = [[n] for n in range(2000)]  # too many objects to be watched one by one\n"
    stage = "@cachec.Cache(log='off').stage\ndef stage(): return len(TABLE)\n"
    (tmp_path / "large.py").write_text(f"import cachec\n{table}{stage}")
    (tmp_path / "run.py").write_text(_COUNTING)
    first, second = program(tmp_path / "run.py", CACHEC_DIR=str(tmp_path / "store")).splitlines()
    assert first.split()[0] == "miss:first-run"
    assert int(first.split()[1]) <= 7
    assert second == "hit 1"


# --- depends= lifts no refusal of a value


class Settings:
    """An object that no key can hold: it has an open file."""

    def __init__(self) -> None:
        self.number = 1
        self.file = open(os.devnull)  # noqa: SIM115


SETTINGS, CONTEXT = Settings(), ContextVar("context", default=1)


def _number() -> int:
    return SETTINGS.number


@pytest.mark.parametrize(
    ("depends", "named"),
    [
        ([SETTINGS], "Settings) has no stable form (depends[0].file is an open file)"),
        ([_number, CONTEXT], "depends[1] (_contextvars.ContextVar)"),
        ([iter([1])], "depends[0] (builtins.list_iterator)"),
        ([__file__], ".SETTINGS.file is an open file"),
        ([_number], ".SETTINGS.file is an open file"),
        ([sys.modules[__name__]], ".SETTINGS.file is an open file"),
        ([Settings], ".SETTINGS.file is an open file"),
        ([SETTINGS.number], ".SETTINGS.file is an open file"),
    ],
    ids=["itself", "context variable", "iterator", "file", "function", "module", "class", "plain value"],
)
@pytest.mark.parametrize("record", ["auto", "off"])
def test_depends_stands_for_no_value_without_a_form(
    tmp_path: Path, depends: list[object], named: str, record: str
) -> None:
    with closing(cachec.Cache(tmp_path / "store", log="off", record=record)) as cache:

        @cache.stage(depends=depends)
        def stage() -> int:
            return _number()

        for _ in range(2):
            value, outcome = stage.call()
            assert (value, outcome.reason, outcome.stored) == (1, Reason.UNRESOLVED_CODE, False)
        assert named in outcome.detail
        assert "depends=" not in outcome.detail
        assert "version=" in outcome.detail
        versioned = cache.stage(stage.__wrapped__, version="1", depends=depends)
        assert [versioned.call()[1].reason for _ in range(2)] == [Reason.FIRST_RUN, Reason.HIT]


@pytest.mark.parametrize("item", [b"table.txt", ["table.txt"], ("table.txt",), {"table.txt"}], ids=type)
def test_an_item_of_depends_that_only_looks_like_a_path_is_refused(cache: cachec.Cache, item: object) -> None:
    with pytest.raises(cachec.UsageError, match=r"depends\[1\] is a .*path"):
        cache.stage(lambda: 1, depends=[_number, item])
