"""Code keys of live objects: what must change them, and what must not."""

# Programs are easier to read as they are.
# ruff: noqa: E501

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

from cachec.errors import CapturedWeights, UnresolvedCode

MAIN = """
import math
from helpers import scale

SIZE = 4

def stage(x):
    return scale(x) * SIZE + math.pi

def unrelated():
    return 1
"""
HELPERS = """
from deep import offset

def scale(x, by=2):
    return x * by + offset(x)

def unrelated(x):
    return x
"""
DEEP = """
def offset(x):
    return x + 1
"""


@pytest.fixture
def base(project: Any) -> Any:
    project.write({"main.py": MAIN, "helpers.py": HELPERS, "deep.py": DEEP})
    return project


def test_parts_name_what_was_reached(base: Any) -> None:
    key = base.key()
    assert [part.label for part in key.parts] == [
        "code/deep.offset",
        "code/helpers.scale",
        "code/helpers.scale.<default>/by",
        "code/main.SIZE",
        "code/main.stage",
    ]
    details = {part.label: part.detail for part in key.parts}
    assert details["code/helpers.scale"] == "helpers.py:4"
    assert details["code/main.SIZE"] == "4"
    assert key.distributions == frozenset()
    assert key.stages == ()
    assert len(key.digest) == 64


@pytest.mark.parametrize(
    "edit",
    [
        {"main.py": MAIN.replace("return scale(x) * SIZE + math.pi", "return scale(x)   *  SIZE + (math.pi)  # why")},
        {"main.py": MAIN.replace("def stage(x):", 'def stage(x):\n    """Documented."""')},
        {"main.py": "# a comment\n\n" + MAIN},
        {"main.py": MAIN.replace("return 1", "return 2")},
        {"main.py": MAIN.replace("return 1", "return 1\n\ndef another():\n    return SIZE")},
        {"helpers.py": HELPERS.replace("def unrelated(x):\n    return x", "def unrelated(x):\n    return -x")},
        {"deep.py": DEEP + "\nOTHER = 3\n"},
    ],
    ids=["formatting", "docstring", "lines", "unrelated", "added", "unrelated in helper", "unrelated value"],
)
def test_what_must_not_change_the_key(base: Any, edit: dict[str, str]) -> None:
    before = base.key().digest
    base.write(edit)
    assert base.key().digest == before


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        ({"main.py": MAIN.replace("+ math.pi", "- math.pi")}, {"code/main.stage"}),
        ({"main.py": MAIN.replace("x", "y")}, {"code/main.stage"}),  # a local name is part of the syntax
        ({"main.py": MAIN.replace("SIZE = 4", "SIZE = 5")}, {"code/main.SIZE"}),
        ({"main.py": MAIN.replace("SIZE = 4", "SIZE = 4.0")}, {"code/main.SIZE"}),
        ({"helpers.py": HELPERS.replace("x * by", "x / by")}, {"code/helpers.scale"}),
        ({"deep.py": DEEP.replace("x + 1", "x + 2")}, {"code/deep.offset"}),
        (
            {"helpers.py": HELPERS.replace("by=2", "by=3")},
            {"code/helpers.scale", "code/helpers.scale.<default>/by"},
        ),
    ],
    ids=["stage", "local name", "global", "type of a global", "helper", "helper's helper", "default"],
)
def test_what_must_change_the_key_and_what_it_names(base: Any, edit: dict[str, str], parts: set[str]) -> None:
    assert base.changed(edit) == parts


def test_the_default_counts_by_value(project: Any) -> None:
    project.write({"main.py": "N = 2\ndef stage(x, n=N, *, k=N): return x\n"})
    assert project.changed({"main.py": "N = 3\ndef stage(x, n=N, *, k=N): return x\n"}) == {
        "code/main.stage.<default>/n",
        "code/main.stage.<default>/k",
    }


# --- the same process: nothing is imported again


def test_an_unchanged_key_is_the_same_object(base: Any) -> None:
    base.forget()
    stage = base.load().stage
    assert base.keys.of(stage) is base.keys.of(stage)


def test_values_changed_at_run_time(base: Any) -> None:
    base.forget()
    main, helpers, deep = base.load(), base.load("helpers"), base.load("deep")
    seen = [base.keys.of(main.stage).digest]

    def check() -> None:
        found = base.keys.of(main.stage).digest
        assert found not in seen
        seen.append(found)

    main.SIZE = 5
    check()
    main.SIZE = [1]
    check()
    main.SIZE.append(2)  # the same object
    check()
    helpers.scale.__defaults__ = (7,)
    check()
    deep.offset.__code__ = (lambda x: x - 1).__code__
    check()
    helpers.offset = lambda x: x
    check()
    main.scale = lambda x: x
    check()
    main.math = types.SimpleNamespace(pi=3)
    check()


def test_going_back_gives_the_first_key_again(base: Any) -> None:
    base.forget()
    main = base.load()
    before = base.keys.of(main.stage).digest
    main.SIZE = 5
    assert base.keys.of(main.stage).digest != before
    main.SIZE = 4
    assert base.keys.of(main.stage).digest == before


def test_values_that_change_inside(project: Any) -> None:
    """Whatever is watched by identity, and whatever is encoded anew, a change inside is seen and undone again."""
    text = """
        import functools
        from collections import OrderedDict
        class A:
            def __init__(self): self.x, self.deep = 1, [{"k": (1, [2])}]
        class B(A): ...
        class C:
            __slots__ = ("y",)
            def __init__(self): self.y = 1
        def f(x, by): return x * by
        a, c, part, order, numbers = A(), C(), functools.partial(f, by=2), OrderedDict(a=1), {1, 2}
        def stage(): return a, c, part, order, numbers
    """
    project.write({"main.py": text})
    main = project.load()
    first = project.keys.of(main.stage)
    old = vars(main.a)

    def change(do: Any, undo: Any) -> None:
        do()
        assert project.keys.of(main.stage).digest != first.digest
        undo()
        assert project.keys.of(main.stage).digest == first.digest

    change(lambda: setattr(main.a, "x", 2), lambda: setattr(main.a, "x", 1))
    change(lambda: setattr(main.a, "z", 2), lambda: delattr(main.a, "z"))
    change(lambda: main.a.deep[0]["k"][1].append(3), lambda: main.a.deep[0]["k"][1].pop())
    change(lambda: main.a.deep[0].update(m=1), lambda: main.a.deep[0].pop("m"))
    change(lambda: setattr(main.a, "__class__", main.B), lambda: setattr(main.a, "__class__", main.A))
    change(lambda: setattr(main.a, "__dict__", {"x": 3}), lambda: setattr(main.a, "__dict__", old))
    change(lambda: setattr(main.c, "y", 2), lambda: setattr(main.c, "y", 1))
    change(lambda: main.part.keywords.update(by=3), lambda: main.part.keywords.update(by=2))
    change(lambda: main.order.update(a=2), lambda: main.order.update(a=1))
    change(lambda: main.numbers.add(3), lambda: main.numbers.discard(3))


def test_a_name_that_appears_later(project: Any) -> None:
    project.write({"main.py": "def stage(): return LATER\n"})
    main = project.load()
    before = project.keys.of(main.stage).digest
    main.LATER = 1
    assert project.keys.of(main.stage).digest != before


def test_a_shadowed_builtin(project: Any) -> None:
    project.write({"main.py": "def stage(x): return len(x)\n"})
    main = project.load()
    before = project.keys.of(main.stage).digest
    main.len = lambda x: 3
    assert project.keys.of(main.stage).digest != before


# --- closures


def test_closure_values_and_functions(project: Any) -> None:
    text = """
        def make(k, helper):
            def stage(x):
                nonlocal_k = k
                return helper(x) * nonlocal_k
            return stage

        def one(x): return x + 1
        def two(x): return x + 2
        a = make(1, one)
        b = make(2, one)
        c = make(1, two)
        d = make(1, one)
    """
    project.write({"main.py": text})
    main = project.load()
    digest = {name: project.keys.of(getattr(main, name)).digest for name in "abcd"}
    assert len({digest["a"], digest["b"], digest["c"]}) == 3
    assert digest["a"] == digest["d"]
    assert "code/main.make.<locals>.stage.<closure>/k" in {part.label for part in project.keys.of(main.a).parts}
    main.a.__closure__[1].cell_contents = 9
    assert project.keys.of(main.a).digest != digest["a"]


def test_equal_parts_in_another_arrangement_differ(project: Any) -> None:
    text = """
        def make(k):
            def apply(x): return x * k
            return apply

        OPS = {"a": make(1), "b": make(2), "c": make(%s)}
        def stage(name, x): return OPS[name](x)
    """
    project.write({"main.py": text % 1})
    before = project.key().digest
    project.write({"main.py": text % 2})
    assert project.key().digest != before


def test_an_empty_cell(project: Any) -> None:
    project.write(
        {"main.py": "def make():\n    def stage(): return later\n    yield stage\n    later = 1\n    yield\n"}
    )
    steps = project.load().make()
    stage = next(steps)
    before = project.keys.of(stage).digest
    next(steps)
    assert project.keys.of(stage).digest != before


# --- decorators, wrappers, callables


DECORATED = """
    import functools
    from contextlib import contextmanager

    def times(k):
        def decorate(f):
            {wraps}
            def inner(x):
                return f(x) * k
            return inner
        return decorate

    @times({k})
    def scale(x):
        return x + 1

    @functools.lru_cache(maxsize={size})
    def cached(x):
        return x + 2

    @contextmanager
    def scope(x):
        yield x + 3

    def stage(x):
        with scope(x) as y:
            return scale(x) + cached(y)
"""


@pytest.mark.parametrize("wraps", ["@functools.wraps(f)", "pass"])
@pytest.mark.parametrize(
    "edit",
    [
        ("{k}", "3"),
        ("x + 1", "x + 9"),
        ("x + 2", "x + 9"),
        ("x + 3", "x + 9"),
        ("f(x) * k", "f(x) + k"),
        ("{size}", "8"),
    ],
)
def test_decorated_helpers(project: Any, wraps: str, edit: tuple[str, str]) -> None:
    def text(*edits: tuple[str, str]) -> str:
        found = DECORATED
        for old, new in (*edits, ("{wraps}", wraps), ("{k}", "2"), ("{size}", "4")):
            found = found.replace(old, new)
        return found

    project.write({"main.py": text()})
    before = project.key().digest
    assert project.key().digest == before
    project.write({"main.py": text(edit)})
    assert project.key().digest != before


def test_partials(project: Any) -> None:
    text = """
        import functools
        def scale(x, by): return x * by
        double = functools.partial(scale, by=2)
        def stage(x): return double(x)
    """
    project.write({"main.py": text})
    before = project.key().digest
    for edit in (("by=2", "by=3"), ("x * by", "x / by")):
        project.write({"main.py": text.replace(*edit)})
        assert project.key().digest != before
    project.write({"main.py": text})
    assert project.key().digest == before


def test_a_partial_as_the_function(project: Any) -> None:
    project.write({"main.py": MAIN, "helpers.py": HELPERS, "deep.py": DEEP})
    main = project.load()
    one = project.keys.of(functools.partial(main.stage, 1)).digest
    assert project.keys.of(functools.partial(main.stage, 1)).digest == one
    assert project.keys.of(functools.partial(main.stage, 2)).digest != one


CALLABLE = """
    class Scale:
        def __init__(self, k):
            self.k = k
        def __call__(self, x):
            return x * self.k + self.more()
        def more(self):
            return 1

    scale = Scale({k})

    def stage(x):
        return scale(x)
"""


def test_callable_instances(project: Any) -> None:
    text = CALLABLE.replace("{k}", "2")
    project.write({"main.py": text})
    assert project.changed({"main.py": text.replace("Scale(2)", "Scale(3)")}) == {"code/main.scale"}
    project.write({"main.py": text})
    assert project.changed({"main.py": text.replace("return 1", "return 2")}) == {"code/main.Scale.more"}
    main = project.load()
    before = project.keys.of(main.scale).digest
    main.scale.k = 11
    assert project.keys.of(main.scale).digest != before


def test_a_method_reaches_its_class_and_its_bases(project: Any) -> None:
    text = """
        class Base:
            def first(self): return 1
        class Model(Base):
            layers = 3
            def second(self): return 2
            def stage(self): return self.first() + self.second() + self.layers
        model = Model()
    """
    project.write({"main.py": text})
    function = project.load().Model.stage
    before = project.keys.of(function).digest
    bound = project.keys.of(project.load().model.stage)
    assert project.keys.of(project.load().model.stage) is bound
    for edit in (("return 1", "return 9"), ("return 2", "return 9"), ("layers = 3", "layers = 4")):
        project.write({"main.py": text.replace(*edit)})
        project.forget()
        assert project.keys.of(project.load().Model.stage).digest != before
        assert project.keys.of(project.load().model.stage).digest != bound.digest


def test_a_bound_method_counts_the_class_of_its_object(project: Any) -> None:
    text = """
        class Base:
            def stage(self): return self.helper()
            def helper(self): return 1
        class Other(Base):
            def helper(self): return {value}
    """
    project.write({"main.py": text.replace("{value}", "2")})
    before = project.keys.of(project.load().Other().stage).digest
    project.write({"main.py": text.replace("{value}", "3")})
    project.forget()
    assert project.keys.of(project.load().Other().stage).digest != before


def test_class_attributes_and_methods_replaced_at_run_time(project: Any) -> None:
    project.write({"main.py": "class A:\n    k = 1\n    def f(self): return self.k\ndef stage(): return A().f()\n"})
    main = project.load()
    seen = {project.keys.of(main.stage).digest}
    main.A.k = 2
    seen.add(project.keys.of(main.stage).digest)
    main.A.f = lambda self: 3
    seen.add(project.keys.of(main.stage).digest)
    main.A.g = 4
    seen.add(project.keys.of(main.stage).digest)
    assert len(seen) == 4


def test_dataclasses_enums_and_named_tuples(project: Any) -> None:
    text = """
        import dataclasses, enum
        from typing import NamedTuple
        @dataclasses.dataclass
        class Config:
            size: int = 2
            def area(self): return self.size ** 2
        class Kind(enum.Enum):
            A = 1
            B = 2
        class Pair(NamedTuple):
            a: int
            b: int = 3
        CONFIG, KIND, PAIR = Config(), Kind.A, Pair(1)
        def stage(): return CONFIG.area(), KIND, PAIR
    """
    project.write({"main.py": text})
    before = project.key().digest
    assert project.key().digest == before
    for edit in (("** 2", "** 3"), ("Config()", "Config(5)"), ("Kind.A,", "Kind.B,"), ("Pair(1)", "Pair(2)")):
        project.write({"main.py": text.replace(*edit)})
        assert project.key().digest != before, edit


def test_lambdas_on_one_line(project: Any) -> None:
    text = "f, g = lambda x: x + 1, lambda x: x + 2\ndef stage(x): return {}(x)\n"
    project.write({"main.py": text.format("f")})
    main = project.load()
    f, g = project.keys.of(main.f), project.keys.of(main.g)
    assert f.digest != g.digest
    assert [part.detail for part in f.parts] == ["main.py:1"]
    project.write({"main.py": text.format("f").replace("+ 2", "+ 3")})
    project.forget()
    assert project.keys.of(project.load().f).digest == f.digest
    assert project.keys.of(project.load().g).digest != g.digest


def test_nested_functions_and_comprehensions(project: Any) -> None:
    text = """
        N = 1
        M = 2
        def helper(y): return y
        def stage(x):
            def inner(z):
                return [helper(i) for i in z if i != N]
            M = 3
            return inner(x), M
    """
    project.write({"main.py": text})
    assert set(project.parts()) == {"code/main.N", "code/main.helper", "code/main.stage"}


def test_recursion_and_cycles(project: Any) -> None:
    project.write(
        {
            "main.py": "import other\ndef stage(n): return other.back(n) if n else stage(n)\n",
            "other.py": "import main\ndef back(n): return main.stage(n - 1)\n",
        }
    )
    assert set(project.parts()) == {"code/main.stage", "code/other.back"}
    assert project.changed({"other.py": "import main\ndef back(n): return main.stage(n - 2)\n"}) == {"code/other.back"}


# --- modules


def test_attributes_of_modules_and_reexports(project: Any) -> None:
    files = {
        "main.py": "import pkg\nimport pkg.values as v\ndef stage(x): return pkg.scale(x) + pkg.values.A + v.B\n",
        "pkg/__init__.py": "from .impl import scale, other\nfrom . import values\n",
        "pkg/impl.py": "def scale(x): return x\ndef other(x): return x\n",
        "pkg/values.py": "A, B, C = 1, 2, 3\n",
    }
    project.write(files)
    assert set(project.parts()) == {"code/main.stage", "code/pkg.impl.scale", "code/pkg.values.A", "code/pkg.values.B"}
    assert project.changed({"pkg/values.py": "A, B, C = 1, 2, 4\n"}) == set()
    assert project.changed({"pkg/values.py": "A, B, C = 9, 2, 3\n"}) == {"code/pkg.values.A"}
    edit = {"pkg/impl.py": "def scale(x): return -x\ndef other(x): return x\n"}
    assert project.changed(edit) == {"code/pkg.impl.scale"}


@pytest.mark.parametrize(
    ("main", "ops"),
    [
        ("from ops import run\ndef stage(x): return run('a', x)\n", "{reg}\n@register\ndef a(x): return {a}\n{run}"),
        ("from ops import run\ndef stage(x): return run('a', x)\n", "{reg}\ndef a(x): return {a}\nregister(a)\n{run}"),
        ("from ops import run\ndef stage(x): return run('a', x)\n", "{reg}\ndef a(x): return {a}\nR['a'] = a\n{run}"),
        ("import ops\ndef stage(x): return getattr(ops, x)(x)\n", "def a(x): return {a}\n"),
        ("from ops import run\ndef stage(x): return run('a', x)\n", "def a(x): return {a}\ndef run(n, x): return globals()[n](x)\n"),
        ("from ops import Base\ndef stage(x): return Base.all(x)\n", "from abc import ABC\nclass Base(ABC):\n    @classmethod\n    def all(c, x): return [s.a(x) for s in c.__subclasses__()]\nclass S(Base):\n    def a(x): return {a}\n"),
        ("from ops import run\ndef stage(x): return run(x)\n", "from impl import *\ndef run(x): return 1\ndef a(x): return {a}\n"),
        ("import ops\ndef stage(x): return eval('ops.a')(x)\n", "def a(x): return {a}\n"),
    ],
    ids=["decorator", "call", "store", "getattr", "globals", "subclass", "star import", "eval"],
)  # fmt: skip
def test_whole_modules(project: Any, main: str, ops: str) -> None:
    reg = "R = {}\ndef register(f):\n    R[f.__name__] = f\n    return f\n"
    run = "def run(n, x): return R[n](x)\n"

    def text(a: str) -> str:
        return ops.replace("{a}", a).replace("{reg}", reg).replace("{run}", run)

    project.write({"main.py": main, "ops.py": text("x"), "impl.py": "def imported(x): return x\n"})
    before = project.key().digest
    project.write({"ops.py": "# said\n" + text("x   #")})
    assert project.key().digest == before
    project.write({"ops.py": text("-x")})
    assert project.key().digest != before


def test_a_module_that_does_none_of_that_is_not_whole(project: Any) -> None:
    text = """
        import logging, os, functools, dataclasses
        from typing import Protocol
        log = logging.getLogger(__name__)
        os.environ["SOME"] = "1"
        logging.getLogger("x").setLevel(3)
        print("hello")
        class Shape(Protocol):
            def area(self): ...
        @dataclasses.dataclass
        class A: ...
        @functools.cache
        def f(): return 1
        def stage(x):
            log.info("x")
            return x
        if __name__ == "__main__":
            stage(1)
    """
    project.write({"main.py": text})
    # what it does to the library when it is imported is a part of its own
    assert set(project.parts()) == {"code/main.<import>", "code/main.log", "code/main.stage"}


@pytest.mark.parametrize(
    "call",
    [
        "logging.getLogger('x').setLevel(3)",
        "warnings.simplefilter('ignore')",
        "faulthandler.is_enabled()",
        "atexit._ncallbacks()",
    ],
)
def test_what_an_import_does_to_messages_is_no_part(project: Any, call: str) -> None:
    project.write({"main.py": f"import {call.partition('.')[0]}\n{call}\ndef stage(x): return x\n"})
    assert set(project.parts()) == {"code/main.stage"}


def test_a_star_import_follows_what_it_brings(project: Any) -> None:
    project.write({"main.py": "from impl import *\ndef stage(x): return run(x)\n", "impl.py": "def run(x): return x\n"})
    assert "code/main" in project.parts()
    assert "code/impl.run" in project.changed({"impl.py": "def run(x): return -x\n"})


def test_a_module_imported_for_what_the_import_does(project: Any) -> None:
    project.write(
        {
            "main.py": "import ops\ndef stage(x): return x\n",
            "ops.py": "import core\ndef rule(x): return x\ncore.register(rule)\n",
            "core.py": "R = []\ndef register(f): R.append(f)\n",
        }
    )
    edit = {"ops.py": "import core\ndef rule(x): return -x\ncore.register(rule)\n"}
    assert "code/ops" in project.changed(edit)
    edit = {"ops.py": "import core\ndef rule(x): return -x  # said\n\ncore.register(rule)\n"}
    assert project.changed(edit) == set()


def test_weights_in_a_module_that_registers_are_not_refused(project: Any, weights: Any) -> None:
    project.write(
        {"main.py": "def register(f): return f\n@register\ndef a(): return weights\ndef stage(x): return x\n"}
    )
    main = project.load()
    main.weights = weights()
    assert "code/main" in {part.label for part in project.keys.of(main.stage).parts}


def test_a_module_that_registers_counts_with_what_stands_in_another_now(project: Any) -> None:
    project.write(
        {
            "main.py": "import ops\ndef stage(x): return ops.x\n",
            "ops.py": "import core\nimport rules\nx = 1\ncore.register(rules.one(1))\n",
            "core.py": "R = []\ndef register(f): R.append(f)\n",
            "rules.py": "def one(x): return x\ndef two(x): return x\n",
        }
    )
    main = project.load()
    before = project.keys.of(main.stage).digest
    rules = main.ops.rules
    rules.two = rules.one
    assert project.keys.of(main.stage).digest == before
    rules.one = lambda x: x + 1
    assert project.keys.of(main.stage).digest != before


def test_a_plain_value_of_a_module_that_was_edited_since_counts_by_itself(project: Any) -> None:
    def key(text: str) -> str:
        project.write({"main.py": "def stage():\n    import helper\n    return helper.X\n", "helper.py": text})
        project.forget()
        project.load("helper")
        main = project.load()
        project.write({"helper.py": "X = 3.5\n"})
        return project.keys.of(main.stage).digest

    assert key("X = 2\n") == key("X = 1 + 1\n") != key("X = 4\n")


def test_a_class_that_is_met_as_a_value_counts_with_what_its_module_registers(project: Any) -> None:
    def key(number: int) -> str:
        text = f"import core\nclass C: ...\ncore.register({number})\n"
        core = "R = []\ndef register(f): R.append(f)\n"
        project.write({"main.py": "T = {}\ndef stage(): return T['a']()\n", "ops.py": text, "core.py": core})
        project.forget()
        main = project.load()
        main.T["a"] = project.load("ops").C
        return project.keys.of(main.stage).digest

    assert key(1) == key(1) != key(2)


def test_a_registry_follows_what_it_holds(project: Any) -> None:
    project.write(
        {
            "main.py": "import plug\nfrom registry import R\ndef stage(n, x): return R[n](x)\n",
            "registry.py": "R = {}\n",
            "plug.py": "import registry\ndef a(x): return x\nregistry.R['a'] = a\n",
        }
    )
    assert "code/plug.a" in project.changed({"plug.py": "import registry\ndef a(x): return -x\nregistry.R['a'] = a\n"})
    main = project.load()
    before = project.keys.of(main.stage).digest
    main.R["b"] = main.stage
    assert project.keys.of(main.stage).digest != before


# --- distributions, the standard library, extension modules


def test_installed_distributions_count_by_name(project: Any) -> None:
    files = {
        "main.py": "import wheel\nfrom wheel.sub import f, CONST\ndef stage(x): return wheel.g(f(x)), CONST\n",
        "wheel/__init__.py": "def g(x): return x\n",
        "wheel/sub.py": "def f(x): return x\nCONST = object()\n",
    }
    project.wheels = {"wheel"}
    project.write(files)
    assert project.key().distributions == {"wheel"}
    assert project.changed({"wheel/sub.py": "def f(x): return -x\nCONST = object()\n"}) == set()
    project.wheels = set()  # an editable install, or a folder on PYTHONPATH
    assert project.key().distributions == frozenset()
    assert "code/wheel.sub.f" in project.changed({"wheel/sub.py": "def f(x): return x\nCONST = object()\n"})


def test_a_value_of_a_distribution_that_can_not_be_encoded(project: Any) -> None:
    project.wheels = {"wheel"}
    project.write(
        {
            "main.py": "from wheel import THING\ndef stage(): return THING\n",
            "wheel/__init__.py": "class Odd:\n    __slots__ = ('a', '__dict__', 'b', 'c')\nTHING = (Odd(), iter([1]))\n",
        }
    )
    assert project.key().distributions == {"wheel"}
    main = project.load()
    main.THING = (iter([2]),)  # no longer what the distribution has
    with pytest.raises(UnresolvedCode, match=r"main\.THING"):
        project.keys.of(main.stage)


def test_a_wrapper_of_a_distribution_does_not_hide_the_project(project: Any) -> None:
    project.wheels = {"wheel"}
    text = "from wheel import jit\n@jit\ndef f(x): return {}\ndef stage(x): return f(x)\n"
    project.write(
        {
            "main.py": text.format("x"),
            "wheel/__init__.py": "def jit(f):\n    def wrapper(x): return f(x)\n    return wrapper\n",
        }
    )
    assert project.key().distributions == {"wheel"}
    assert "code/main.f" in project.changed({"main.py": text.format("-x")})


def test_a_compiled_wrapper_counts_by_the_statement_that_made_it(project: Any) -> None:
    text = "import functools\ndef f(x): return 1\nfast = functools.lru_cache(maxsize={})(f)\ndef stage(x): return fast(x)\n"
    project.write({"main.py": text.format(3)})
    assert project.changed({"main.py": text.format(4)}) == {"code/main.fast", "code/main.stage"}


def test_the_standard_library_adds_nothing(project: Any) -> None:
    project.write(
        {
            "main.py": """
                import json, re, os.path, threading
                from collections import OrderedDict
                from math import sqrt
                LOCK, RE, MISSING = threading.Lock(), re.compile("a+"), object()
                def stage(x):
                    with LOCK:
                        return json.dumps(OrderedDict(a=sqrt(x))), os.path.join("a", "b"), RE, MISSING
            """
        }
    )
    key = project.key()
    assert key.distributions == frozenset()
    assert {part.label for part in key.parts} == {
        "code/main.LOCK",
        "code/main.MISSING",
        "code/main.RE",
        "code/main.stage",
        "code/main.sqrt",
    }
    before = key.digest
    path = project.root / "main.py"
    path.write_text(path.read_text().replace("a+", "b+"))
    assert project.key().digest != before


def test_an_extension_module_of_the_project_counts_by_content(project: Any) -> None:
    project.write({"main.py": "import sys\next = sys.modules['ext']\ndef stage(x): return ext.f(x)\n"})
    library = project.root / "ext.so"
    module = types.ModuleType("ext")
    module.__file__ = str(library)
    module.f = lambda x: x  # type: ignore[attr-defined]
    sys.modules["ext"] = module
    library.write_bytes(b"one")
    try:
        main = project.load()
        before = project.keys.of(main.stage)
        assert "code/ext" in {part.label for part in before.parts}
        library.write_bytes(b"two")
        assert project.keys.of(main.stage).digest != before.digest
        library.unlink()
        with pytest.raises(UnresolvedCode, match="ext"):
            project.keys.of(main.stage)
        assert project.keys.of(main.stage, has_version=True).digest
    finally:
        del sys.modules["ext"]


# --- what can't be resolved


@pytest.mark.parametrize(
    "text",
    [
        "STATE = iter([1])\ndef stage(): return STATE\n",
        "import importlib\ndef stage(name): return importlib.import_module(name)\n",
        "def stage(name): return __import__(name)\n",
        "def stage(name):\n    import importlib.util\n    return importlib.util.spec_from_file_location(name, name)\n",
        "import sys\ndef stage(name): return sys.modules[name]\n",
        "def stage():\n    import nowhere_to_be_found\n",
    ],
    ids=["value", "import_module", "__import__", "spec", "sys.modules", "missing module"],
)
def test_unresolved_code_is_reported_with_the_ways_out(project: Any, text: str) -> None:
    project.write({"main.py": text})
    with pytest.raises(UnresolvedCode, match=r"main\.(stage|STATE).*version="):
        project.key()
    with pytest.raises(UnresolvedCode, match=r"main\.(stage|STATE).*version="):
        project.key(depends=[3])
    versioned = project.key(has_version=True)
    assert "code/main.stage" in {part.label for part in versioned.parts}
    assert project.key(depends=[3], has_version=True).digest != versioned.digest
    project.write({"main.py": text + "\ndef unrelated(): return 1\n"})
    assert project.key(has_version=True).digest == versioned.digest


@pytest.mark.parametrize("where", ["{}", "pkg.{}"])
@pytest.mark.parametrize(
    "name",
    [
        *("__name__", "__file__", "__doc__", "__spec__", "__package__", "__path__", "__loader__", "__builtins__"),
        "__cached__",
    ],
)
def test_what_every_module_has_counts_by_name(
    project: Any, monkeypatch: pytest.MonkeyPatch, name: str, where: str
) -> None:
    """Most of it is a place on this machine."""
    project.write({"pkg/__init__.py": f"import pkg\ndef f(): return {where.format(name)}\n"})
    project.write({"main.py": "import pkg\ndef stage(): return pkg.f()\n"})
    before = project.key().digest
    project.forget()
    project.root = project.root.rename(project.root.with_name("moved"))
    monkeypatch.syspath_prepend(str(project.root))
    assert project.key().digest == before
    assert project.root in Path(sys.modules["pkg"].__file__).parents


def test_depends_count(project: Any) -> None:
    project.write(
        {
            "main.py": "import importlib\nimport extra\ndef stage(name): return importlib.import_module(name).f()\n",
            "extra.py": "def f(): return 1\ndef g(): return 2\n",
        }
    )
    main = project.load()

    def digests() -> tuple[str, str]:
        project.forget()
        main, extra = project.load(), project.load("extra")
        return project.keys.of(main.stage, depends=[extra.f]).digest, project.keys.of(
            main.stage, depends=[extra]
        ).digest

    assert main
    before = digests()
    project.write({"extra.py": "def f(): return 1\ndef g(): return 3\n"})
    after = digests()
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)
    project.write({"extra.py": "def f(): return 2\ndef g(): return 3\n"})
    assert digests()[0] != after[0]


# --- weights


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> Any:
    class WeightSet:
        pass

    module = types.ModuleType("cachec.weights")
    module.WeightSet = WeightSet  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cachec.weights", module)
    return WeightSet


@pytest.mark.parametrize(
    "text",
    [
        "W = None\ndef stage(): return W\n",
        "W = None\ndef helper(): return W\ndef stage(): return helper()\n",
        "W = None\ndef stage(): return globals()['W']\n",
        "import main\nW = None\ndef stage(): return main.W\n",
    ],
)
@pytest.mark.parametrize("hide", [lambda w: w, lambda w: {"a": [w]}])
def test_weights_by_a_global_are_refused(project: Any, weights: Any, text: str, hide: Any) -> None:
    project.write({"main.py": text})
    main = project.load()
    main.W = hide(weights())
    with pytest.raises(CapturedWeights, match=r"main\.W"):
        project.keys.of(main.stage)
    with pytest.raises(CapturedWeights, match=r"main\.W"):
        project.keys.of(main.stage, has_version=True)
    main.W = None
    assert project.keys.of(main.stage)


@pytest.mark.parametrize("kind", [list, dict])
def test_the_search_for_weights_ends_in_what_contains_itself(project: Any, weights: Any, kind: type) -> None:
    around: Any = kind()
    around.append(around) if kind is list else around.update(around=around)
    project.write({"main.py": "V = None\ndef stage(): return V\n"})
    main = project.load()
    main.V = around
    with pytest.raises(UnresolvedCode, match=r"main\.V"):
        project.keys.of(main.stage)


def test_weights_by_a_closure_a_default_and_an_attribute_are_refused(project: Any, weights: Any) -> None:
    text = """
        def make(w):
            def stage(): return w
            return stage
        def default(w):
            def stage(w=w): return w
            return stage
        class Holder:
            def __init__(self, w): self.w = w
        def held(w):
            h = Holder(w)
            return lambda: h.w
    """
    project.write({"main.py": text})
    main = project.load()
    for make in (main.make, main.default, main.held):
        with pytest.raises(CapturedWeights, match="Pass it to the stage as an argument"):
            project.keys.of(make(weights()))
        assert project.keys.of(make(3))


def test_weights_that_the_stage_does_not_reach_are_fine(project: Any, weights: Any) -> None:
    project.write({"main.py": "W = None\ndef stage(x): return x\ndef other(): return W\n"})
    main = project.load()
    main.W = weights()
    assert project.keys.of(main.stage)


# --- stages


STAGES = """
    class Stage:
        __cachec_stage__ = True
        def __init__(self, f): self.__wrapped__ = f
        def __call__(self, x): return self.__wrapped__(x)

    def inner_function(x): return {}
    inner = Stage(inner_function)
    def stage(x): return inner(x)
    outer = Stage(stage)
"""


def test_stages_are_collected_and_followed(project: Any) -> None:
    project.write({"main.py": STAGES.format("x")})
    main = project.load()
    key = project.keys.of(main.stage)
    assert key.stages == (main.inner,)
    assert project.keys.of(main.outer).digest == key.digest
    project.write({"main.py": STAGES.format("-x")})
    assert project.key().digest != key.digest


CACHED = """
    import cachec
    from elsewhere import shared

    cache = cachec.Cache()

    @cache.stage{one}
    def stage(x): return x

    @shared.stage
    def second(x): return x
"""


def test_the_options_of_a_stage_are_not_its_code(project: Any) -> None:
    """Their parts are elsewhere; and making a stage is no registration, in whatever module the cache is."""
    project.write({"elsewhere.py": "from cachec import Cache\nshared = Cache()\n", "cachec_stub.py": ""})
    fake = types.ModuleType("fake")
    exec(  # what a stage decorator leaves for the key: the function itself
        "class Cache:\n    def stage(self, f=None, **k): return f if f else (lambda f: f)\n", fake.__dict__
    )
    real = sys.modules.get("cachec")
    fake.__path__ = real.__path__ if real else []
    sys.modules["cachec"] = fake
    fake.Cache.__module__ = "cachec"
    try:
        project.write({"main.py": CACHED.format(one="")})
        assert set(project.parts()) == {"code/main.stage"}
        before = project.key().digest
        project.write({"main.py": CACHED.format(one='(tags=["a"])')})
        assert project.key().digest == before
    finally:
        if real is not None:
            sys.modules["cachec"] = real


# --- files that are edited while the process lives


def test_a_file_edited_after_the_import_never_gives_the_key_of_the_new_source(base: Any) -> None:
    original = base.key().digest
    main = base.load()
    base.keys = base.new_keys()
    base.write({"helpers.py": HELPERS.replace("x * by", "x / by")})
    stale = base.keys.of(main.stage)
    details = {part.label: part.detail for part in stale.parts}
    assert details["code/helpers.scale"] == "helpers.py, source changed since import"
    edited = base.key().digest
    assert len({original, stale.digest, edited}) == 3


def test_the_finder_of_an_editable_install_is_asked(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As setuptools makes one: a class of a module whose name tells."""

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> Any:
            place = project.root / "apart" / f"{name}.py"
            return importlib.util.spec_from_file_location(name, place) if name == "edited" else None

    Finder.__module__ = "__editable___edited_1_0_finder"
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    project.write({"main.py": "def stage():\n    import edited\n    return edited.X\n", "apart/edited.py": "X = 1\n"})
    assert project.changed({"apart/edited.py": "X = 2\n"}) == {"code/edited.X"}


def test_a_file_edited_after_the_import_elsewhere_changes_nothing(base: Any) -> None:
    original = base.key().digest
    main = base.load()
    base.keys = base.new_keys()
    base.write({"helpers.py": "# one\n# two\n" + HELPERS.replace("return x\n", "return -x\n")})
    assert base.keys.of(main.stage).digest == original


def test_a_stale_key_does_not_change_with_the_file_again(base: Any) -> None:
    base.forget()
    main = base.load()
    before = base.keys.of(main.stage).digest
    base.write({"helpers.py": HELPERS.replace("x * by", "x / by")})
    assert base.keys.of(main.stage).digest == before  # the code that runs is the old one


def test_code_without_a_file(project: Any) -> None:
    def make(text: str) -> Any:
        namespace: dict[str, Any] = {"__name__": "typed", "K": 1}
        exec(compile(text, "<typed>", "exec"), namespace)
        return namespace["stage"]

    one = make("def helper(x): return x + K\ndef stage(x): return helper(x)\n")
    key = project.keys.of(one)
    assert {part.label for part in key.parts} == {"code/typed.K", "code/typed.helper", "code/typed.stage"}
    same = make("def helper(x):  return x + K  # said\n\ndef stage(x): return helper(x)\n")
    assert project.keys.of(same).digest == key.digest
    assert project.keys.of(make("def helper(x): return x - K\ndef stage(x): return helper(x)\n")).digest != key.digest
    one.__globals__["K"] = 2
    assert project.keys.of(one).digest != key.digest


def test_code_without_a_file_sees_attributes_and_imports(project: Any) -> None:
    project.write({"lazy.py": "def f(x): return x\n", "helpers.py": "def g(x): return x\ndef h(x): return x\n"})
    helpers = project.load("helpers")
    namespace: dict[str, Any] = {"__name__": "typed", "helpers": helpers}
    exec("def stage(x):\n    from lazy import f\n    return f(helpers.g(x))\n", namespace)
    stage = namespace["stage"]
    names = {part.label for part in project.keys.of(stage).parts}
    assert {"code/helpers.g", "code/lazy.f"} <= names
    assert "code/helpers.h" not in names


# --- where and how it runs


def test_another_folder_gives_the_same_key(project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"main.py": MAIN, "helpers.py": HELPERS, "deep.py": DEEP}
    project.write(files)
    key = project.key()
    assert str(tmp_path) not in repr(key.parts)
    project.forget()
    project.root = tmp_path / "elsewhere"
    project.write(files)
    monkeypatch.setattr(sys, "path", [str(project.root), *sys.path[1:]])
    found = project.key()
    assert sys.modules["main"].__file__ == str(project.root / "main.py")
    assert found == key


SCRIPT = """
import sys
from cachec.key import option_encoding
from cachec.key.code.fingerprint import CodeKeys

NAMES = {"a", "b", "c", "delta"}
OPS = {len, str.upper}
class Point:
    def __init__(self): self.at = frozenset(["x", "y", "z"])
POINT = Point()
def one(x): return x
def two(x): return x
FUNCTIONS = {one, two}
def stage(x):
    import lazy
    return x in NAMES, POINT, FUNCTIONS, lazy.f(x)

if __name__ == "__main__":
    keys = CodeKeys(lambda path: None, lambda v, p: option_encoding.encode(v, lambda v, p: None, p))
    print(keys.of(stage).digest)
"""


def test_hash_seeds_and_running_as_a_script(project: Any) -> None:
    project.write({"demo.py": SCRIPT, "lazy.py": "K = {'a', 'b'}\ndef f(x): return x in K\n"})
    found = set()
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": f"{project.root}{os.pathsep}{root}"}
    imported = (
        "import demo, runpy; from demo import *; "
        "print(CodeKeys(lambda p: None, lambda v, p: option_encoding.encode(v, lambda v, p: None, p)).of(demo.stage).digest)"
    )
    for seed, command in enumerate((["demo.py"], ["demo.py"], ["-c", imported], ["-m", "demo"])):
        run = subprocess.run(
            [sys.executable, *command],
            env=environment | {"PYTHONHASHSEED": str(seed)},
            cwd=project.root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        found.add(run.stdout)
    assert len(found) == 1


def test_the_main_path_imports_nothing_slow(project: Any) -> None:
    project.write({"demo_stage.py": "N = [1]\ndef stage(x):\n    import lazy\n    return lazy.f(x), N\n"})
    project.write({"lazy.py": "K = 1\ndef f(x): return x in K\n"})
    script = textwrap.dedent("""
        import sys
        from cachec.key.code.fingerprint import CodeKeys
        import demo_stage
        CodeKeys(lambda path: None, lambda value, path: repr(value).encode()).of(demo_stage.stage)
        print([n for n in ("numpy", "importlib.metadata", "lazy", "click", "subprocess") if n in sys.modules])
    """)
    root = Path(__file__).parents[3]
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": f"{project.root}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "[]\n"


# --- what the standard library makes of a class


MADE = """
import collections, dataclasses, enum, functools, reprlib, types
FACTOR = 2

class Color(enum.Enum):
    RED = 1
    GREEN = FACTOR
    @functools.cached_property
    def slow(self): return 5

class Bits(enum.IntFlag):
    A = 1
    B = 2

Point = collections.namedtuple("Point", "x y", defaults=[0])
Other = types.new_class("Other", (), {}, lambda names: names.update(size=FACTOR, f=lambda self: 1))
Fields = dataclasses.make_dataclass("Fields", [("x", int, FACTOR)])

def helper(): return 1

class Shown:
    @reprlib.recursive_repr()
    def __repr__(self): return str(helper())

def stage(): return Color.RED, Bits.A, Point(1), Other, Fields(), Shown()
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FACTOR = 2", "FACTOR = 3"),
        ("RED = 1", "RED = 7"),
        ("GREEN = FACTOR", "BLUE = FACTOR"),
        ("return 5", "return 6"),
        ("A = 1\n", "A = 4\n"),
        ('"x y"', '"x z"'),
        ("defaults=[0]", "defaults=[1]"),
        ("size=FACTOR", "size=1"),
        ("lambda self: 1", "lambda self: 2"),
        ('[("x", int, FACTOR)]', '[("z", int, FACTOR)]'),
        ("def helper(): return 1", "def helper(): return 2"),
        ("def stage", "Point.__new__.__defaults__ = (5,)\ndef stage"),
        ("def stage", "Point.__repr__ = lambda self: 'p'\ndef stage"),
        ("def stage", "Color.RED.cost = 5\ndef stage"),
        ("def stage", "Other.size = 5\ndef stage"),
    ],
)
def test_what_classes_are_made_from_counts(project: Any, old: str, new: str) -> None:
    assert old in MADE
    project.write({"main.py": MADE})
    assert project.changed({"main.py": MADE.replace(old, new, 1)})


def test_what_classes_are_made_from_counts_in_one_process_too(project: Any) -> None:
    project.write({"main.py": MADE})
    project.forget()
    main = project.load()
    known = project.keys.of(main.stage)
    main.Bits.A | main.Bits.B  # a composite is remembered by its class
    assert main.Color.RED.slow == 5  # and this by its member
    repr(main.Shown())
    assert project.keys.of(main.stage) == known
    main.Color.RED.cost = 5
    assert project.keys.of(main.stage) != known
    del main.Color.RED.cost
    assert project.keys.of(main.stage) == known
    main.Point.__new__.__defaults__ = (7,)
    assert project.keys.of(main.stage) != known
    main.Point.__new__.__defaults__ = (0,)
    main.Other.size = 9
    assert project.keys.of(main.stage) != known


def test_a_module_of_the_project_that_is_named_like_one_of_the_library(project: Any) -> None:
    main = "import reprlib\nclass A: pass\nA.f = reprlib.f\ndef stage(): return A()\n"
    project.write({"main.py": main, "reprlib.py": "def f(self): return 1\n"})
    before = sys.modules.pop("reprlib", None)
    try:
        known = project.key()
        sys.modules.pop("reprlib", None)
        project.write({"reprlib.py": "def f(self): return 2\n"})
        assert project.key() != known
    finally:
        sys.modules.pop("reprlib", None)
        if before is not None:
            sys.modules["reprlib"] = before
