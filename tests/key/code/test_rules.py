"""The rules of soundness, one by one: an edit that must change the key, and its neighbour that must not."""

# Programs are easier to read as they are.
# ruff: noqa: E501

from __future__ import annotations

import sys
from typing import Any

import pytest

import cachec
from cachec.errors import UnresolvedCode

#: A module, an edit of it that must miss, and one beside it that must hit. The stage is in the module.
RULES = {
    "default_factory": (
        "import dataclasses\ndef make(): return [1]\ndef other(): return [2]\n@dataclasses.dataclass\nclass A:\n    x: list = dataclasses.field(default_factory=make)\ndef stage(): return A().x\n",
        ("[1]", "[3]"),
        ("[2]", "[3]"),
    ),
    "property of a cache": (
        "import functools\ndef f(self): return 1\ndef g(self): return 2\nclass A:\n    p = property(functools.lru_cache(f))\ndef stage(): return A().p\n",
        ("return 1", "return 3"),
        ("return 2", "return 3"),
    ),
    "caches that are made of each other": (
        "import functools\ndef f(): return 1\ndef g(): return 2\na = functools.lru_cache(f)\nb = functools.lru_cache(a)\na = functools.lru_cache(b)\ndef stage(): return a()\n",
        ("return 1", "return 3"),
        ("return 2", "return 3"),
    ),
    "annotations that are no mapping": (
        "def f(): return 1\ndef g(): return 2\nclass A:\n    __annotations__ = property(lambda self: {})\n    def x(self): return self.__annotations__, f()\ndef stage(): return A().x(), A.__annotations__ is None\n",
        ("return 1", "return 3"),
        ("return 2", "return 3"),
    ),
    "staticmethod of a cache": (
        "import functools\ndef f(): return 1\ndef g(): return 2\nclass A:\n    p = staticmethod(functools.lru_cache(f))\ndef stage(): return A.p()\n",
        ("return 1", "return 3"),
        ("return 2", "return 3"),
    ),
    "classmethod of a cache": (
        "import functools\ndef f(cls): return 1\ndef g(cls): return 2\nclass A:\n    p = classmethod(functools.lru_cache(f))\ndef stage(): return A.p()\n",
        ("return 1", "return 3"),
        ("return 2", "return 3"),
    ),
    "partialmethod of a cache": (
        "import functools\ndef f(self, n): return 1\ndef g(self): return 2\nclass A:\n    p = functools.partialmethod(functools.lru_cache(f), 5)\ndef stage(): return A().p()\n",
        ("return 1", "return 3"),
        ("return 2", "return 3"),
    ),
    "what a partialmethod is given": (
        "import functools\nN, M = 5, 6\ndef f(self, n): return n\nclass A:\n    p = functools.partialmethod(f, N)\ndef stage(): return A().p()\n",
        ("5, 6", "7, 6"),
        ("5, 6", "5, 7"),
    ),
    "setter of a property": (
        "def f(self, v): self.v = 1\ndef g(self, v): self.v = 2\nclass A:\n    p = property(None, f)\ndef stage():\n    a = A()\n    a.p = 0\n    return a.v\n",
        ("v = 1", "v = 3"),
        ("v = 2", "v = 3"),
    ),
    "deleter of a property": (
        "def f(self): self.v = 1\ndef g(self): self.v = 2\nclass A:\n    p = property(None, None, f)\ndef stage():\n    a = A()\n    del a.p\n    return a.v\n",
        ("v = 1", "v = 3"),
        ("v = 2", "v = 3"),
    ),
    "singledispatchmethod": (
        "import functools\ndef f(self, x): return 1\ndef g(self, x): return 2\nclass A:\n    p = functools.singledispatchmethod(f)\ndef stage(): return A().p('')\n",
        ("return 1", "return 3"),
        ("return 2", "return 3"),
    ),
    "registered in a singledispatchmethod": (
        "import functools\ndef f(self, x): return 1\ndef g(self, x): return 2\ndef h(self, x): return 4\nclass A:\n    p = functools.singledispatchmethod(f)\n    p.register(int, g)\ndef stage(): return A().p(1)\n",
        ("return 2", "return 3"),
        ("return 4", "return 3"),
    ),
    "cached_property of a cache": (
        "import functools\ndef f(self): return 1\ndef g(self): return 2\nclass A:\n    p = functools.cached_property(functools.lru_cache(f))\n    p.__set_name__(None, 'p')\ndef stage(): return A().p\n",
        ("return 1", "return 3"),
        ("return 2", "return 3"),
    ),
    "a dunder table": (
        "K, M = 1, 2\nclass A:\n    __table__ = {'k': K}\ndef stage(): return A.__table__\n",
        ("1, 2", "3, 2"),
        ("1, 2", "1, 3"),
    ),
    "slots": (
        "NAMES, M = ('a', 'b'), 2\nclass A:\n    __slots__ = NAMES\ndef stage(): return A.__slots__\n",
        ("'b'", "'c'"),
        (", 2", ", 3"),
    ),
    "order of a dict": (
        "T, U = {'a': 1, 'b': 2}, {'a': 1, 'b': 2}\ndef stage(): return list(T)\n",
        ("T, U = {'a': 1, 'b': 2}", "T, U = {'b': 2, 'a': 1}"),
        (", {'a': 1, 'b': 2}", ", {'b': 2, 'a': 1}"),
    ),
    "order of a Counter": (
        "import collections\nC, S = collections.Counter('ab'), set('ab')\ndef stage(): return list(C), S\n",
        ("Counter('ab')", "Counter('ba')"),
        ("set('ab')", "set('ba')"),
    ),
    "docstring through self": (
        "class A:\n    'one'\n    def m(self): return self.__doc__  # said\ndef stage(): return A().m()\n",
        ("one", "two"),
        ("said", "done"),
    ),
    "docstring through a parameter": (
        "def f():\n    'one'  # said\ndef d(g): return g.__doc__\ndef stage(): return d(f)\n",
        ("one", "two"),
        ("said", "done"),
    ),
    "docstring of a module": (
        "'one'\nimport inspect, sys  # said\ndef stage(): return inspect.getdoc(sys.modules['main'])\n",
        ("one", "two"),
        ("said", "done"),
    ),
    "docstring of a class": (
        "import inspect\nclass A:\n    'one'  # said\ndef stage(): return inspect.getdoc(A)\n",
        ("one", "two"),
        ("said", "done"),
    ),
    "docstring of a method": (
        "import inspect\nclass A:\n    def f(self):\n        'one'  # said\ndef stage(): return inspect.getdoc(A.f)\n",
        ("one", "two"),
        ("said", "done"),
    ),
    "docstring told to a decorator in a class": (
        "import functools, inspect\ndef f():\n    'one'  # said\nclass A:\n    p = staticmethod(functools.lru_cache(maxsize=len(inspect.getdoc(f)))(abs))\ndef stage(): return A.p(1)\n",
        ("one", "three"),
        ("said", "done"),
    ),
    "docstring that nobody reads": (
        "def f():\n    'one'\n    return 1\ndef stage(): return f()\n",
        ("return 1", "return 2"),
        ("one", "two"),
    ),
    "source": (
        "import inspect\ndef f(): return 1  # said\ndef stage(): return inspect.getsource(f)\n",
        ("said", "done"),
        ("# none", "# none"),
    ),
    "cmp_to_key": (
        "import functools\ndef c(a, b): return a - b\ndef d(): return 1\nK = functools.cmp_to_key(c)\ndef stage(): return sorted([2, 1], key=K)\n",
        ("a - b", "b - a"),
        ("return 1", "return 2"),
    ),
    "a metaclass that only its class leads to": (
        "class M(type):\n    def size(cls): return 1\ndef other(): return 2\nA = M('A', (), {})\ndef stage(): return A.size()\n",
        ("return 1", "return 3"),
        ("return 2", "return 3"),
    ),
    "a wrapper in a closure": (
        "import functools\ndef other(): return 2\ndef make():\n    f = functools.lru_cache(maxsize=4)(lambda x: x)\n    return lambda x: f(x)\nstage = make()\n",
        ("maxsize=4", "maxsize=5"),
        ("return 2", "return 3"),
    ),
    "what takes no part in a result": (
        "import logging, threading\nL, R, O, G, H = threading.Lock(), threading.RLock(), object(), logging.getLogger('x'), logging.getLogger()\nK, M = 1, 2\ndef stage():\n    with L, R: return K, O, G, H\n",
        ("1, 2", "3, 2"),
        ("1, 2", "1, 3"),
    ),
    **{
        name: (f"import array, collections, operator, string\nX, Y = {value.format('a1')}, {value.format('b1')}\ndef stage(): return X\n", ("a1", "a2"), ("b1", "b2"))
        for name, value in {
            "itemgetter": "operator.itemgetter('{}')",
            "attrgetter": "operator.attrgetter('{}')",
            "methodcaller": "operator.methodcaller('{}')",
            "array": "array.array('b', b'{}')",
            "code": "(lambda: '{}').__code__",
            "bytearray": "bytearray(b'{}')",
            "chain map": "collections.ChainMap(dict(k='{}'))",
            "user dict": "collections.UserDict(k='{}')",
            "user list": "collections.UserList(['{}'])",
            "user string": "collections.UserString('{}')",
            "template": "string.Template('{}')",
        }.items()
    },
    "a docstring that code of no source asks for": (
        "exec('def ask(f): return f.__doc__')\ndef f():\n    'one'\n    return 1\ndef stage(): return ask(f)\n",
        ("one", "two"),
        ("# none", "# none"),
    ),
    "a class of no source": (
        "import abc, types\nK, M = 1, 2\nA = abc.ABCMeta('A', (), {'x': K})\ndef stage(): return A.x\n",
        ("1, 2", "3, 2"),
        ("# none", "# none"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_an_edit_misses_and_its_neighbour_hits(project: Any, rule: str) -> None:
    text, (old, new), (neighbour, instead) = RULES[rule]
    assert old in text
    project.write({"main.py": text})
    before = project.key().digest
    assert project.key().digest == before
    project.write({"main.py": text.replace(neighbour, instead, 1)})
    assert project.key().digest == before
    project.write({"main.py": text.replace(old, new, 1)})
    assert project.key().digest != before


@pytest.mark.parametrize(
    ("word", "old", "new"),
    [
        *((word, "one", "two") for word in ("__doc__", "getdoc", "help", "pydoc")),
        *((word, "said", "done") for word in ("getsource", "getsourcelines", "getcomments", "findsource", "getblock")),
        *((word, "said", "done") for word in ("linecache", "getline", "getlines", "f_lineno", "co_firstlineno")),
        *(
            (word, "said", "done")
            for word in ("tb_lineno", "extract_tb", "extract_stack", "format_stack", "format_exc")
        ),
        *((word, "said", "done") for word in ("print_exc", "format_exception", "print_exception", "getframeinfo")),
    ],
)
def test_what_asks_for_text_makes_it_count(project: Any, word: str, old: str, new: str) -> None:
    text = f"def f():\n    'one'\n    return 1  # said\ndef stage(module): return module.{word}(f)\n"
    project.write({"main.py": text})
    before = project.key().digest
    project.write({"main.py": text.replace(old, new)})
    assert project.key().digest != before
    project.write({"main.py": text.replace(word, "unknown")})
    before = project.key().digest
    project.write({"main.py": text.replace(word, "unknown").replace(old, new)})
    assert project.key().digest == before


@pytest.mark.parametrize(
    "attribute",
    [
        *("p = n", "p = [n]", "def p(self, x=n): return x", "def p(self, *, x=n): return x"),
        *("p = functools.partialmethod(f, n)", "p = functools.partialmethod(f, n=n)"),
        *("p = staticmethod(make(n))", "p = classmethod(make(n))", "p = functools.cached_property(make(n))"),
        *("p = property(make(n))", "p = property(None, make(n))", "p = property(None, None, make(n))"),
        *("p = functools.singledispatchmethod(make(n))", "p = functools.partialmethod(make(n))"),
    ],
)
def test_what_only_a_live_class_shows(project: Any, attribute: str) -> None:
    """The value is read from a file at import, and its name is gone."""
    text = "import functools, pathlib\nn = pathlib.Path(__file__).with_name('n.txt').read_text()\n"
    text += "def f(self, n): return n\ndef make(n): return lambda *_: n\n"
    text += f"class A:\n    {attribute}\ndel n\ndef stage(): return A\n"
    project.write({"main.py": text, "n.txt": "1"})
    before = project.key().digest
    assert project.key().digest == before
    project.write({"n.txt": "2"})
    assert project.key().digest != before


@pytest.mark.parametrize(
    "around",
    [
        "if stage is None: ...\nelse:\n    {}",
        "try: raise ValueError\nexcept ValueError:\n    {}",
        "try: ...\nfinally:\n    {}",
        "match 1:\n    case 1:\n        {}",
        "with contextlib.suppress(ValueError):\n    {}",
        "def make():\n    if stage is None: ...\n    else:\n        {}\n    return A\nA = make()",
    ],
    ids=["else", "except", "finally", "case", "with", "function"],
)
def test_a_class_statement_counts_wherever_it_is(project: Any, around: str) -> None:
    text = f"import contextlib\ndef stage(): return A.__annotations__\n{around.format('class A: x: int')}\n"
    project.write({"main.py": text})
    before = project.key().digest
    project.write({"main.py": text.replace("int", "str")})
    assert project.key().digest != before


@pytest.mark.parametrize(
    "text",
    [
        "import types\nX = types.SimpleNamespace(a=1, f=len)\n",
        "import types\nX = types.MappingProxyType({'a': 1, 'f': len})\n",
        "import collections\nX = collections.defaultdict(lambda: 1, a=1)\n",
        "import collections\nX = collections.deque([1], maxlen=1)\n",
        "class D(dict):\n    def __missing__(self, k): return 1\nX = D(a=1)\n",
        "class L(list): ...\nX = L([1])\n",
        *(f"class C({kind}): ...\nX = C([(1, 0)])\n" for kind in ("tuple", "set", "frozenset", "dict")),
        *(
            f"import collections\nclass C(collections.{kind}): ...\nX = C({{1: 0}})\n"
            for kind in ("OrderedDict", "Counter")
        ),
        "import random\nX = random.Random(1)\n",
        "import numpy\nX = numpy.random.default_rng(1)\n",
        *(
            "import numpy\nX = numpy.array([0, 1])\n",
            "import numpy\nX = numpy.zeros(1)\n",
            "import numpy\nX = numpy.zeros(3, 'i1')\n",
        ),
        "import numpy\nX = numpy.array([0, 5, 1, 5])[::2]\n",
        "import torch\nX = torch.ones(2) * 1\n",
        "import numpy, functools\nX = {'add': numpy.add, 'double': functools.partial(numpy.multiply, 1.0)}\n",
    ],
)
def test_values_that_have_a_stable_form(project: Any, cache: cachec.Cache, text: str) -> None:
    if "torch" in text:
        pytest.importorskip("torch")

    def key(text: str) -> str:
        project.write({"main.py": f"{text}def stage(): return X\n"})
        project.forget()
        return cache.stage(project.load().stage).key()

    before = key(text)
    assert key(text + "# said\n") == before
    assert key(text.replace("1", "2")) != before


@pytest.mark.parametrize(
    ("made", "one", "other"),
    [
        ("class X:\n    def __eq__(self, o): return True\n    def __hash__(self): return len(n)", "1", "22"),
        *(
            (f"class X:\n    def {name}(self): return n", "1", "2")
            for name in ("__match_args__", "__annotations__", "__parameters__")
        ),
        ("import typing\nX = typing.NewType('X', typing.Literal[n])", "1", "2"),
        ("import typing\nX = [typing.TypeVar('X', bound=typing.Literal[n])]", "1", "2"),
        ("import typing\nX = typing.TypeVar('X', int, typing.Literal[n])", "1", "2"),
        ("import typing\nX = typing.ParamSpec('X', bound=typing.Literal[n])", "1", "2"),
        ("import csv\nX = csv.Sniffer().sniff(n)", "a;b\nc;d", "a,b\nc,d"),
        ("import msgspec\nX = msgspec.defstruct('X', [('width', str, n)])", "1", "2"),
        ("import msgspec\nX = msgspec.defstruct('X', ['f' + n])", "1", "2"),
        ("import ctypes\nX = ctypes.CFUNCTYPE(ctypes.c_int if n == '1' else ctypes.c_long)", "1", "2"),
        ("import functools\nX = functools.partial(len)\nX.tag = n", "1", "2"),
    ],
)
def test_what_is_made_when_it_is_imported_counts(project: Any, made: str, one: str, other: str) -> None:
    """Its source stays as it is: the file that is read at import changes."""
    text = "import pathlib\nn = pathlib.Path(__file__).with_name('n.txt').read_text()\n"
    text += f"{made}\n{'' if 'def ' in made else 'del n'}\ndef stage(): return X\n"
    project.write({"main.py": text, "n.txt": one})
    before = project.key().digest
    assert project.key().digest == before
    project.write({"n.txt": other})
    assert project.key().digest != before


def test_a_path_counts_by_its_text_also_when_it_was_used(project: Any, cache: cachec.Cache) -> None:
    project.write({"main.py": "import pathlib\nX = pathlib.Path('a/b')\ndef stage(): return X\n"})
    main = project.load()
    stage = cache.stage(main.stage)
    before = stage.key()
    assert hash(main.X)  # which it keeps
    assert main.X.parts
    assert stage.key() == before


def test_an_attribute_of_a_partial_counts_as_it_is_now(project: Any, cache: cachec.Cache) -> None:
    project.write({"main.py": "import functools\nX = [functools.partial(len)]\ndef stage(): return X\n"})
    main = project.load()
    stage = cache.stage(main.stage)
    before = stage.key()
    assert stage.key() == before
    main.X[0].tag = "a"
    assert stage.key() != before


def test_a_library_object_in_a_table_counts_by_its_name(project: Any) -> None:
    project.wheels = {"wheel"}
    wheel = "class Op:\n    __slots__ = ('state',)\n    def __call__(self, x): return x\nadd, multiply = Op(), Op()\nadd.state = multiply.state = iter([])\n"
    text = "import wheel\nT = {'a': wheel.add}\ndef stage(x): return T['a'](x)\n"
    project.write({"wheel/__init__.py": wheel, "main.py": text})
    assert project.key().distributions == {"wheel"}
    assert project.changed({"main.py": text.replace("wheel.add", "wheel.multiply")}) == {"code/main.T"}
    main = project.load()
    main.T["a"] = main.wheel.Op()
    main.T["a"].state = iter([])
    with pytest.raises(UnresolvedCode, match=r"main\.T"):
        project.keys.of(main.stage)


@pytest.mark.parametrize("held", ["pass", "__slots__ = ('state',)"])
def test_what_a_library_makes_of_tuples_and_marks_of_nothing_have_a_form(project: Any, held: str) -> None:
    project.wheels = {"wheel"}
    wheel = f"import typing\nclass Mark: {held}\nNOT_GIVEN = Mark()\nclass Rule(typing.NamedTuple):\n    update: object\nclass More(Rule): pass\ndef rule(by): return More(lambda x: x * by)\n"
    text = "import wheel\nR = wheel.rule(2)\ndef stage(x, by=wheel.NOT_GIVEN): return R.update(x)\n"
    project.write({"wheel/__init__.py": wheel, "main.py": text})
    assert project.key().distributions == {"wheel"}
    assert project.changed({"main.py": text.replace("rule(2)", "rule(3)")})
    assert project.changed({"main.py": text.replace("rule(3)", "rule(2)")})
    main = project.load()
    before = project.keys.of(main.stage).digest
    main.wheel.NOT_GIVEN.state = 1  # it counts by its pickle from now on
    now = project.keys.of(main.stage).digest
    main.wheel.NOT_GIVEN.state = 2
    assert len({before, now, project.keys.of(main.stage).digest}) == 3


def test_a_part_of_a_library_that_is_imported_where_it_is_asked_for_changes_no_key(project: Any) -> None:
    project.wheels = {"wheel"}
    lazy = "def __getattr__(name):\n    import importlib\n    return importlib.import_module('wheel.' + name)\n"
    text = "import wheel\ndef stage(): return wheel.part.f()\n"
    project.write({"wheel/__init__.py": lazy, "wheel/part.py": "def f(): return 1\n", "main.py": text})
    main = project.load()
    before = project.keys.of(main.stage).digest
    assert main.stage() == 1
    assert project.keys.of(main.stage).digest == before
    main.wheel.part.f = main.stage
    assert project.keys.of(main.stage).digest != before


def test_what_a_library_puts_on_a_class_counts_by_what_it_was_told(project: Any) -> None:
    project.wheels = {"wheel"}
    wheel = "class Table:\n    __slots__ = ('of', 'handle')\nclass Base:\n    def __init_subclass__(cls):\n        cls.table = Table()\n        cls.table.of, cls.table.handle = sorted(vars(cls)), iter([])\n"
    text = "import wheel\nclass A(wheel.Base):\n    x = 1\ndef stage(): return A.table.of\n"
    project.write({"wheel/__init__.py": wheel, "main.py": text})
    assert project.key().distributions == {"wheel"}
    assert "code/main.A" in project.changed({"main.py": text.replace("x = 1", "y = 1")})
    project.write({"main.py": text.replace("x = 1", "x = iter([])")})
    with pytest.raises(UnresolvedCode, match=r"main\.A\.x"):
        project.key()


def test_a_library_object_of_a_class_of_another_library_counts_with_both(project: Any) -> None:
    project.wheels = {"classes", "names"}
    project.write(
        {
            "classes/__init__.py": "class Op:\n    def __call__(self): return 1\n",
            "names/__init__.py": "from classes import Op\nadd = Op()\nadd.__module__, add.__name__, add.state = 'names', 'add', iter([])\n",
            "main.py": "T = {}\ndef stage(): return T['a']()\n",
        }
    )
    main = project.load()
    main.T["a"] = project.load("names").add
    assert project.keys.of(main.stage).distributions == {"classes", "names"}


def test_an_annotation_that_is_asked_for_later_is_no_refusal(project: Any) -> None:
    text = "import typing\nX = iter([])\nclass C:\n    a: X\ndef other(): return typing.get_type_hints(C)\n"
    project.write({"main.py": text + "def stage(): return C, other()\n"})
    assert {"code/main.C", "code/main.other"} < set(project.parts())


def test_a_list_that_contains_itself(project: Any) -> None:
    inside = "def stage():\n    import main\n    return main.L\n"
    project.write({"main.py": "L = []\ndef stage(): return L\n", "other.py": inside})
    main, other = project.load(), project.load("other")
    before = project.keys.of(other.stage).digest
    main.L.append(main.L)
    with pytest.raises(UnresolvedCode, match=r"main\.L"):
        project.keys.of(main.stage)
    assert project.keys.of(other.stage).digest != before


def test_subclasses_that_the_program_alone_imports(project: Any) -> None:
    sub = "from base import Base\nclass Sub(Base):\n    k = 1\n"
    project.write(
        {
            "base.py": "class Base: ...\n",
            "sub.py": sub,
            "main.py": "from base import Base\ndef stage(): return [each.k for each in Base.__subclasses__()]\n",
            "other.py": "from base import Base\ndef stage(): return Base()\n",
        }
    )

    def key(text: str, of: str) -> str:
        project.write({"sub.py": text})
        project.forget()
        stage = project.load(of).stage
        without = project.keys.of(stage).digest
        project.load("sub")
        found = project.keys.of(stage).digest
        assert (found == without) == (of == "other")
        return found

    assert key(sub, "main") == key(sub + "# said\n", "main") != key(sub.replace("1", "2"), "main")
    assert key(sub, "other") == key(sub.replace("1", "2"), "other")


def test_an_optional_import_of_a_module_that_the_stage_imports(project: Any) -> None:
    helper = "try:\n    import fast\n    HAVE = True\nexcept ImportError:\n    HAVE = False\n"
    project.write({"main.py": "def stage():\n    import helper\n    return helper.HAVE\n", "helper.py": helper})
    before = project.key()
    stage = sys.modules["main"].stage
    assert stage() is False
    assert project.keys.of(stage) == before
    project.write({"slow.py": ""})
    assert project.keys.of(stage) == before
    project.write({"fast.py": ""})
    running = project.keys.of(stage)
    assert running != before  # it looked for the module in vain
    assert project.key() not in (before, running)  # a new process finds it


def test_an_edit_of_what_a_value_was_computed_by_is_not_that_of_this_process(project: Any) -> None:
    """Else the old value would be stored under the key of the new text, for every later process."""
    helper = "def double(n): return n * 2\nK = double(1)\nM = double(5)\n"
    project.write({"main.py": "def stage():\n    import helper\n    return helper.K\n", "helper.py": helper})
    before = project.key()
    stage = sys.modules["main"].stage
    stage()
    assert project.keys.of(stage) == before
    project.write({"helper.py": helper.replace("double(5)", "double(6)")})
    assert project.keys.of(stage) == before
    project.write({"helper.py": helper.replace("double(1)", "double(2)")})
    running = project.keys.of(stage)
    assert running not in (before, project.key())


@pytest.mark.parametrize("setter", ["import cfg\ncfg.X = 5\n", "import cfg\ncfg.X = int('4')\ncfg.X = 5\n"])
def test_a_value_that_another_module_sets_when_it_is_imported(project: Any, setter: str) -> None:
    project.write({"main.py": "def stage():\n    import cfg, setter\n    return cfg.X\n", "cfg.py": "X = 0\n", "setter.py": setter})  # fmt: skip
    before = project.key()
    stage = sys.modules["main"].stage
    assert stage() == 5
    assert project.keys.of(stage) == before
    sys.modules["cfg"].X = 6
    assert project.keys.of(stage) != before
    assert project.changed({"setter.py": setter.replace("5", "7")})
    assert project.changed({"setter.py": setter.replace("5", "7") + "# said\n"}) == set()


# --- memos


MEMO = "import functools\nK, M = 2, 3\n@functools.cache\ndef scaled(x): return x * K\ndef stage(x): return scaled(x)\n"


def test_a_result_of_a_memo_of_earlier_code_is_not_stored(project: Any, cache: cachec.Cache) -> None:
    project.write({"main.py": MEMO})
    project.forget()
    main = project.load()
    stage = cache.stage(main.stage)
    assert stage.call(1)[1].stored
    main.M = 4
    assert stage(1) == 2
    main.K = 7
    value, outcome = stage.call(1)
    assert (value, outcome.reason.value, outcome.stored) == (2, "bypass:stale-memo", False)
    assert "main.scaled" in outcome.detail
    main.scaled.cache_clear()
    value, outcome = stage.call(1)
    assert (value, outcome.stored) == (7, True)
    main.K = 2
    assert stage.call(1)[1].hit  # by the key of then, whatever the memo holds
    assert stage.call(5)[1].reason.value == "bypass:stale-memo"


def test_a_memo_that_the_program_filled_with_the_same_code_is_no_reason(project: Any, cache: cachec.Cache) -> None:
    project.write({"main.py": MEMO})
    project.forget()
    main = project.load()
    main.scaled(1)
    assert cache.stage(main.stage).call(1)[1].stored


# --- methods


def test_a_stage_that_is_a_method_of_a_plain_class(project: Any, cache: cachec.Cache) -> None:
    text = "class Scale:\n    unit = 1\n    def __init__(self, by): self.by = by\n    def more(self): return {}\n    def other(self): return 3\n    def times(self, x): return x * self.by + self.more()\n"

    def call(more: int, by: int) -> tuple[Any, Any]:
        project.write({"main.py": text.format(more)})
        project.forget()
        main = project.load()
        main.Scale.times = cache.stage(main.Scale.times)
        return main.Scale(by).times.call(2)

    assert call(1, 3)[0] == 7
    assert call(1, 3)[1].hit
    assert not call(1, 4)[1].hit
    value, outcome = call(2, 3)
    assert (value, outcome.hit) == (8, False)
