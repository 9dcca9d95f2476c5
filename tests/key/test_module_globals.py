"""Forms of values: equal in two processes, neutral edits change nothing, and every other edit does."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from cachec.key.canonical_forms import MAX_DEPTH, Forms
from cachec.key.module_globals import differences, table


class Case(NamedTuple):
    """Three texts of one module that makes ``value``: as it is, after a neutral edit, after another."""

    text: str
    neutral: str
    changed: str


def _edit(text: str, neutral: tuple[str, str], changed: tuple[str, str]) -> Case:
    text = textwrap.dedent(text)
    assert neutral[0] in text
    assert changed[0] in text
    return Case(text, text.replace(*neutral), text.replace(*changed))


FUNCTION = """
    LIMIT = 3
    def value(x, *, scale=2):
        if x in {"a", "b", "c"}:
            return x * scale * 5
        class Inner:
            y = 1
        return [Inner().y for _ in range(LIMIT)]
    value.tag = "t"
"""

CLASS = """
    class Base:
        pass
    class value(Base):
        rate: int = 1
        names = {"a", "b"}
        def run(self):
            return super().__init__()
        @property
        def size(self):
            return 4
        @staticmethod
        def of(x=1):
            return x
"""

DATACLASS = """
    import dataclasses
    @dataclasses.dataclass
    class Config:
        rate: int = 1
        names: list[str] = dataclasses.field(default_factory=list)
    value = Config()
"""

CASES = {
    "int": Case(
        "value = 1",
        "value = 2 - 1",
        "value = 1.0",
    ),
    "text": Case(
        "value = 'a'",
        'value = "a"',
        "value = b'a'",
    ),
    "many": Case(
        "value = ['a' * i for i in range(99)] + [1, 2.0]",
        "value = [i * 'a' for i in range(99)]; value += [1, 2.0]",
        "value = ['a' * i for i in range(99)] + [1, 2]",
    ),
    "many-in-a-dict": Case(
        "value = {f'k{i}': i for i in range(99)}",
        "value = dict((f'k{i}', i) for i in range(99))",
        "value = {f'k{i}': i for i in range(98)}; value['k98'] = True",
    ),
    "many-in-a-set": Case(
        "value = {f'k{i}' for i in range(99)}",
        "value = {f'k{i}' for i in reversed(range(99))}",
        "value = {f'k{i}' for i in range(100)}",
    ),
    "array-empty": Case(
        "import numpy as np\nvalue = np.zeros((0, 3))",
        "import numpy as np\nvalue = np.ones((0, 3))",
        "import numpy as np\nvalue = np.zeros((0, 4))",
    ),
    "array-scalar": Case(
        "import numpy as np\nvalue = np.array(1.5)",
        "import numpy as np\nvalue = np.asarray(1.5)",
        "import numpy as np\nvalue = np.array(2.5)",
    ),
    "array-strided": Case(
        "import numpy as np\nvalue = np.arange(9)[::2]",
        "import numpy as np\nvalue = np.arange(10)[::2]",
        "import numpy as np\nvalue = np.arange(9)[::2].copy()",
    ),
    "set": Case(
        "value = {'a', 'b', 'c'}",
        "value = {'c', 'b', 'a'}",
        "value = frozenset({'a', 'b', 'c'})",
    ),
    "set-of-tuples": Case(
        "value = {('a', 1), ('b', 2)}",
        "value = {('b', 2), ('a', 1)}",
        "value = {('a', 2), ('b', 1)}",
    ),
    "dict": Case(
        "value = {'a': 1, 'b': 2}",
        "value = dict(a=1, b=2)",
        "value = {'b': 2, 'a': 1}",
    ),
    "shared": Case(
        "a = []; value = [a, a]",
        "b = []; value = [b, b]",
        "value = [[], []]",
    ),
    "cycle": Case(
        "value = []; value.append(value)",
        "v = []; v.append(v); value = v",
        "value = [[]]",
    ),
    "cycle-deep": Case(
        "value = [[]]; value[0].append(value)",
        "value = [[]]; value[0] += [value]",
        "value = [[]]; value[0].append(value[0])",
    ),
    "function-position": _edit(FUNCTION, ("LIMIT = 3", "LIMIT = 3\n\n# a comment\n"), ("* 5", "* 6")),
    "function-docstring": _edit(
        FUNCTION, ("scale=2):", "scale=2):\n    '''Words.'''"), ("range(LIMIT)", "range(LIMITS)")
    ),
    "function-inner": _edit(FUNCTION, ("y = 1", "y = 2 - 1  # one"), ("y = 1", "y = 2")),
    "function-default": _edit(FUNCTION, ("x, *, scale", "x : int, *, scale"), ("scale=2", "scale=3")),
    "function-set": _edit(FUNCTION, ('"a", "b"', '"b", "a"'), ('"a", "b"', '"a", "d"')),
    "function-global": _edit(FUNCTION, ("LIMIT = 3", "LIMIT = 4"), ("value.tag", "value.label")),
    "closure": _edit(
        """
        def make(k):
            def inner(x): return x + k
            return inner
        value = make(2)
        """,
        ("make(2)", "make(k=1 + 1)"),
        ("make(2)", "make(3)"),
    ),
    "lambda": Case(
        "value = lambda x: x + 1",
        "\n\nvalue = (lambda x: x + 1)",
        "value = lambda x: x + 2",
    ),
    "class": _edit(
        CLASS, ("class value(Base):", "class value(Base):\n    '''Words.'''\n"), ("rate: int = 1", "rate = 2")
    ),
    "class-base": _edit(CLASS, ("    pass", "    # nothing\n    pass"), ("    pass", "    more = 1")),
    "class-method": _edit(CLASS, ("def run(self):", "def run(self):\n        'Words.'"), ("__init__", "__repr__")),
    "class-property": _edit(CLASS, ("return 4", "return 2 + 2"), ("return 4", "return 5")),
    "class-static": _edit(CLASS, ("x=1", "x = 1"), ("x=1", "x=2")),
    "instance": _edit(CLASS + "    value = value(); value.own = [1]\n", ("own = [1]", "own = [1,]"), ("[1]", "[2]")),
    "instance-class": _edit(
        CLASS + "    value = value()\n", ("return 4", "return 4 # four"), ("rate: int = 1", "rate = 7")
    ),
    "slots": _edit(
        "class P:\n    __slots__ = ('a', 'b')\n    def __init__(self): self.a, self.b = 1, 2\nvalue = P()",
        ("self.a, self.b = 1, 2", "self.a, self.b = 1, 2  # both"),
        ("1, 2", "1, 3"),
    ),
    "dataclass": _edit(DATACLASS, ("Config()", "Config(rate=1)"), ("Config()", "Config(names=['a'])")),
    "dataclass-field": _edit(DATACLASS, ("rate: int", "rate: 'int'"), ("default_factory=list", "default_factory=dict")),
    "subclass-of-dict": Case(
        "class D(dict): pass\nvalue = D(a=1)",
        "class D(dict): ...\nvalue = D({'a': 1})",
        "class D(dict): pass\nvalue = D(a=2)",
    ),
    "subclass-of-int": Case(
        "class I(int): pass\nvalue = I(1)",
        "class I(int):\n    'Words.'\nvalue = I(1)",
        "class I(int): pass\nvalue = I(2)",
    ),
    "exception": Case(
        "class E(ValueError): pass\nvalue = E('a')",
        "class E(ValueError): ...\nvalue = E('a')",
        "class E(ValueError): pass\nvalue = E('b')",
    ),
    "enum": _edit(
        "import enum\nclass E(enum.Enum):\n    A = 1\n    B = 'b'\nvalue = E.A",
        ("A = 1", "A = 1 # one"),
        ("E.A", "E.B"),
    ),
    "enum-class": _edit(
        "import enum\nclass value(enum.IntFlag):\n    A = 1\n    B = 2", ("A = 1", "A = 2 - 1"), ("B = 2", "B = 4")
    ),
    "named-tuple": Case(
        "from typing import NamedTuple\nclass N(NamedTuple):\n    a: int = 1\nvalue = N()",
        "from typing import NamedTuple\nclass N(NamedTuple):\n    a: int = 1\nvalue = N(a=1)",
        "from typing import NamedTuple\nclass N(NamedTuple):\n    b: int = 1\nvalue = N()",
    ),
    "abstract": _edit(
        "import abc\nclass value(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...",
        ("def f(self): ...", "def f(self):\n        ..."),
        ("def f", "def g"),
    ),
    "generic": Case(
        "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass value(Generic[T]): x = 1",
        "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass value(Generic[T]):\n    'Words.'\n    x = 1",
        "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass value(Generic[T]): x = 2",
    ),
    "two-classes": _edit(
        "class A: limit = 1\nclass B: kind = A\nA.other = B\nvalue = A()",
        ("class A: limit", "class A:\n    limit"),
        ("class B: kind = A", "class B: kind = A; more = 1"),
    ),
    "registry": _edit(
        "class R:\n    known = set()\ndef add(c): R.known.add(c); return c\n"
        "@add\nclass A(R): x = 1\n@add\nclass B(R): y = 1\nvalue = R",
        ("@add\nclass A(R): x = 1\n@add\nclass B(R): y = 1", "class A(R): x = 1\nclass B(R): y = 1\nadd(B); add(A)"),
        ("@add\nclass B", "class B"),
    ),
    "partial": Case(
        "import functools\nvalue = functools.partial(print, 1)",
        "from functools import partial\nvalue = partial(print, 1)",
        "import functools\nvalue = functools.partial(print, 2)",
    ),
    "memo-parameters": Case(
        "import functools\n@functools.lru_cache(4)\ndef value(x): return x",
        "import functools\n@functools.lru_cache(maxsize=4)\ndef value(x): return x",
        "import functools\n@functools.lru_cache(5)\ndef value(x): return x",
    ),
    "single-dispatch": _edit(
        "import functools\n@functools.singledispatch\ndef value(x): return 1\n@value.register(int)\ndef _(x): return 2",
        ("return 2", "return 2\nvalue(1)"),
        ("register(int)", "register(str)"),
    ),
    "cached-property": _edit(
        "import functools\nclass P:\n    @functools.cached_property\n    def a(self): return 1\nvalue = P()",
        ("return 1", "return 1 # one"),
        ("value = P()", "value = P(); value.a"),
    ),
    "library-class": Case(
        "import pathlib\nvalue = pathlib.PurePath",
        "from pathlib import PurePath as value",
        "import pathlib\nvalue = pathlib.Path",
    ),
    "library-function": Case(
        "import json\nvalue = json.dumps",
        "from json import dumps as value",
        "import json\nvalue = json.loads",
    ),
    "module": Case(
        "import json as value",
        "import json\nvalue = json",
        "import pickle as value",
    ),
    "path": Case(
        "import pathlib\nvalue = pathlib.Path('/a/b')",
        "import pathlib\nvalue = pathlib.Path('/a', 'b'); str(value); hash(value)",
        "import pathlib\nvalue = pathlib.Path('/a/c')",
    ),
    "decimal": Case(
        "import decimal\nvalue = decimal.Decimal('1.0')",
        "from decimal import Decimal\nvalue = Decimal('1.0')",
        "import decimal\nvalue = decimal.Decimal('1.00')",
    ),
    "pattern": Case(
        "import re\nvalue = re.compile('a')",
        "import re\nvalue = re.compile('a', 0)",
        "import re\nvalue = re.compile('a', re.I)",
    ),
    "default-dict": Case(
        "from collections import defaultdict\nvalue = defaultdict(list, a=[1])",
        "from collections import defaultdict\nvalue = defaultdict(list); value['a'].append(1)",
        "from collections import defaultdict\nvalue = defaultdict(set, a=[1])",
    ),
    "generator-state": Case(
        "import random\nvalue = random.Random(0)",
        "import random\nvalue = random.Random(); value.seed(0)",
        "import random\nvalue = random.Random(0); value.random()",
    ),
    "counter": Case(
        "import itertools\nvalue = itertools.count(1)",
        "import itertools\nvalue = itertools.count(0); next(value)",
        "import itertools\nvalue = itertools.count(0)",
    ),
    "lock": Case(
        "import threading\nvalue = threading.Lock()",
        "import threading\nvalue = threading.Lock(); value.acquire(); value.release()",
        "import threading\nvalue = threading.RLock()",
    ),
    "event": Case(
        "import threading\nvalue = threading.Event()",
        "import threading\nvalue = threading.Event(); value.clear()",
        "import threading\nvalue = threading.Event(); value.set()",
    ),
    "local": Case(
        "import threading\nvalue = threading.local()",
        "import threading\nvalue = threading.local(); value.a = 1; del value.a",
        "import threading\nvalue = threading.local(); value.a = 1",
    ),
    "context": Case(
        "from contextvars import ContextVar\nvalue = ContextVar('c', default=1)",
        "from contextvars import ContextVar\nvalue = ContextVar('c', default=1); value.reset(value.set(2))",
        "from contextvars import ContextVar\nvalue = ContextVar('c', default=1); value.set(2)",
    ),
    "logger": Case(
        "import logging\nvalue = logging.getLogger('a')",
        "import logging\nvalue = logging.getLogger('a'); value.info('x')",
        "import logging\nvalue = logging.getLogger('a'); value.setLevel(10)",
    ),
    "weak": Case(
        "import weakref\nclass A: pass\na = A()\nvalue = weakref.WeakValueDictionary(a=a)",
        "import weakref\nclass A: pass\na = A()\nvalue = weakref.WeakValueDictionary(a=a, b=A())",
        "import weakref\nclass A: pass\na = A()\nvalue = weakref.WeakValueDictionary(b=a)",
    ),
    "method": Case(
        "class A:\n    def f(self): return 1\nvalue = A().f",
        "class A:\n    def f(self):\n        'Words.'\n        return 1\nvalue = A().f",
        "class A:\n    def f(self): return 2\nvalue = A().f",
    ),
    "builtin-method": Case(
        "a = [1]; value = a.append",
        "value = [1].append",
        "value = [2].append",
    ),
    "alias": Case(
        "value = dict[str, int | None]",
        "from typing import Union\nvalue = dict[str, int | None]",
        "value = dict[str, int]",
    ),
    "array": Case(
        "import numpy as np\nvalue = np.arange(6)",
        "import numpy as np\nvalue = np.array([0, 1, 2, 3, 4, 5])",
        "import numpy as np\nvalue = np.arange(6.0)",
    ),
    "array-order": Case(
        "import numpy as np\nvalue = np.zeros((2, 2))",
        "import numpy as np\nvalue = np.zeros([2, 2], order='C')",
        "import numpy as np\nvalue = np.zeros((2, 2), order='F')",
    ),
    "array-bytes": Case(
        "import numpy as np\nvalue = np.ones(500)",
        "import numpy as np\nvalue = np.full(500, 1.0)",
        "import numpy as np\nvalue = np.ones(500); value[499] = 0",
    ),
    "array-write": Case(
        "import numpy as np\nvalue = np.ones(2)",
        "import numpy as np\nvalue = np.array([1.0, 1.0])",
        "import numpy as np\nvalue = np.ones(2); value.flags.writeable = False",
    ),
    "objects": Case(
        "import numpy as np\nvalue = np.array([{}], dtype=object)",
        "import numpy as np\nvalue = np.array([dict()], dtype='O')",
        "import numpy as np\nvalue = np.array([[]], dtype=object)",
    ),
    "numpy-generator": Case(
        "import numpy as np\nvalue = np.random.default_rng(0)",
        "from numpy.random import default_rng\nvalue = default_rng(0)",
        "import numpy as np\nvalue = np.random.default_rng(1)",
    ),
    "attrs": Case(
        "import attrs\n@attrs.define\nclass A:\n    a: int = 1\nvalue = A()",
        "import attrs\n@attrs.define\nclass A:\n    'Words.'\n    a: int = 1\nvalue = A()",
        "import attrs\n@attrs.define\nclass A:\n    a: int = 2\nvalue = A()",
    ),
    "msgspec": Case(
        "import msgspec\nclass A(msgspec.Struct):\n    a: int = 1\nvalue = A()",
        "import msgspec\nclass A(msgspec.Struct):\n    'Words.'\n    a: int = 1\nvalue = A()",
        "import msgspec\nclass A(msgspec.Struct):\n    a: int = 1\nvalue = A(2)",
    ),
    "pydantic": Case(
        "import pydantic\nclass A(pydantic.BaseModel):\n    a: int = 1\nvalue = A()",
        "import pydantic\nclass A(pydantic.BaseModel):\n    'Words.'\n    a: int = 1\nvalue = A()",
        "import pydantic\nclass A(pydantic.BaseModel):\n    a: int = 1\nvalue = A(a=2)",
    ),
    "stage": _edit(
        "import cachec\ncache = cachec.Cache('/nowhere/cache')\n@cache.stage\ndef value(x): return x + 1",
        ("return x + 1", "return x + 1 # more"),
        ("@cache.stage", "@cache.stage(version='2')"),
    ),
    "cache": Case(
        "import cachec\nvalue = cachec.Cache('/nowhere/a')",
        "from cachec import Cache\nvalue = Cache('/nowhere/a')",
        "import cachec\nvalue = cachec.Cache('/nowhere/b')",
    ),
}

PRINT = """
import importlib, json, sys
from cachec.key.canonical_forms import Forms
folder, count = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, folder)
forms = Forms(lambda path: path.startswith(folder))
values = [importlib.import_module(f"case_{number}").value for number in range(count)]
print(json.dumps([[forms.digest(value), forms.obstacle(value)] for value in values]))
"""


def _digests(folder: Path, texts: list[str], seed: str) -> list[tuple[str, str]]:
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"case_{number}.py").write_text(text)
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PRINT, str(folder), str(len(texts))]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert answer.returncode == 0, answer.stderr
    return [tuple(each) for each in json.loads(answer.stdout)]


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[str, str]]]:
    """Of each case, what a process says: of its text, of the same in another folder, after a neutral edit, after the
    other edit. Every process has another hash seed."""
    top = tmp_path_factory.mktemp("forms")
    texts = [[getattr(case, name) for case in CASES.values()] for name in ("text", "text", "neutral", "changed")]
    found = [_digests(top / str(number), each, str(number + 1)) for number, each in enumerate(texts)]
    return [dict(zip(CASES, each, strict=True)) for each in found]


@pytest.mark.parametrize("case", CASES)
def test_equal_in_two_processes(digests: list[dict[str, tuple[str, str]]], case: str) -> None:
    assert digests[0][case][1] == ""
    assert digests[0][case] == digests[1][case]


@pytest.mark.parametrize("case", CASES)
def test_a_neutral_edit_changes_nothing(digests: list[dict[str, tuple[str, str]]], case: str) -> None:
    assert digests[0][case] == digests[2][case]


@pytest.mark.parametrize("case", CASES)
def test_any_other_edit_changes_the_form(digests: list[dict[str, tuple[str, str]]], case: str) -> None:
    assert digests[3][case][1] == ""
    assert digests[0][case] != digests[3][case]


@pytest.fixture
def forms() -> Forms:
    """Of a project that this file is in."""
    return Forms(lambda path: path == __file__)


def test_what_another_process_can_not_have_has_no_form(forms: Forms, tmp_path: Path) -> None:
    held = threading.Lock()
    with held, (tmp_path / "file").open("w") as file:
        for value in (file, held, (each for each in "ab"), sys._getframe(), [{"a": file}]):
            assert forms.form(value) is None
            assert forms.digest(value) == ""
            assert forms.obstacle(value)
    assert forms.form(held) is not None


def test_the_obstacle_names_the_attribute_of_a_class(forms: Forms, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        cls = type("Config", (), {"log": file})
        assert forms.obstacle(cls) == "an open file (as log of the class)"


def test_no_code_of_the_project_runs(forms: Forms) -> None:
    class Watched:
        ran: list[str] = []  # noqa: RUF012 - looked at below

        def __getattr__(self, name: str) -> object:
            self.ran.append(name)
            raise AttributeError(name)

        def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
            self.ran.append("__reduce_ex__")
            return (Watched, ())

        def __getstate__(self) -> dict[str, object]:
            self.ran.append("__getstate__")
            return {}

        def __hash__(self) -> int:
            self.ran.append("__hash__")
            return 1

        def __eq__(self, other: object) -> bool:
            self.ran.append("__eq__")
            return True

        @property
        def part(self) -> int:
            self.ran.append("part")
            return 1

    value = {Watched()}
    Watched.ran.clear()
    assert forms.form([value, Watched()]) is not None
    assert Watched.ran == []


def test_state_that_only_code_of_the_project_could_tell_has_no_form(forms: Forms) -> None:
    class Failure(ValueError):
        def __reduce__(self) -> tuple[object, ...]:
            raise AssertionError("it runs")

    assert forms.obstacle(Failure()).endswith("whose state its own code makes")


def test_the_standard_streams_are_told_by_name(forms: Forms) -> None:
    assert forms.form([sys.__stdout__]) != forms.form([sys.__stderr__])
    assert forms.form([sys.__stdout__]) is not None


def test_the_form_of_a_class_is_the_same_wherever_it_is_met(forms: Forms) -> None:
    class First:
        kind: object = None

    class Second:
        kind = First

    First.kind = Second
    alone = Forms(lambda path: path == __file__)
    assert forms.form([First, Second]) is not None
    assert forms.form(Second) == alone.form(Second)
    assert forms.form(First) == Forms(lambda path: path == __file__).form(First)


def test_what_nests_too_deeply_has_no_form(forms: Forms) -> None:
    def nested(depth: int) -> object:
        return functools.reduce(lambda inner, _: [inner], range(depth), "end")

    assert forms.form(nested(MAX_DEPTH)) is not None
    assert forms.form(nested(MAX_DEPTH + 1)) is None
    assert forms.form(nested(100_000)) is None


def test_plugins_are_asked_for_values_of_their_types() -> None:
    class Opaque:
        def __init__(self, content: int) -> None:
            self.content = content
            self.lock = threading.Lock()
            self.lock.acquire()

    def describe(value: object) -> object:
        return ("opaque", value.content) if isinstance(value, Opaque) else NotImplemented

    described = Forms(lambda path: path == __file__, describe)
    assert described.form(Opaque(1)) == described.form(Opaque(1)) is not None
    assert described.form(Opaque(1)) != described.form(Opaque(2))

    def refuse(value: object) -> object:
        raise TypeError("not here") if isinstance(value, Opaque) else None or AssertionError

    assert "not here" in Forms(lambda path: path == __file__, refuse).obstacle(Opaque(1))


def test_what_a_library_raises_is_an_obstacle() -> None:
    class Odd(dict[str, int]):
        pass

    def broken(_path: str) -> bool:
        raise OSError("no such disk")

    assert "can't be read (OSError: no such disk)" in Forms(broken).obstacle(Odd())


def _module(name: str, **values: object) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(values)
    return module


def test_a_table_has_the_globals_of_modules_but_not_where_they_come_from(forms: Forms) -> None:
    made = table({"m": _module("m", a=1, b=(each for each in "a"), __all__=["a"], __file__="/m.py")}, forms)
    assert made == {"m": {"a": forms.digest(1), "b": "", "__all__": forms.digest(["a"])}}
    assert table({"m": _module("m", a=1, b=2)}, forms, {"b"}) == {"m": {"b": forms.digest(2)}}


def test_differences_are_what_the_other_lacks_or_has_otherwise() -> None:
    mine = {"m": {"same": "1", "other": "2", "formless": "", "new": "3"}, "n": {"only": "4"}}
    theirs = {"m": {"same": "1", "other": "1", "formless": "", "deleted": "5"}, "more": {"x": "6"}}
    assert differences(mine, theirs) == [
        ("m", "other"),
        ("m", "formless"),
        ("m", "new"),
        ("m", "deleted"),
        ("n", "only"),
    ]
