"""Edits that once went unseen, and reasons to miss that were none: each is a project that was attacked."""

from __future__ import annotations

import dataclasses
import fractions
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cachec
from cachec.errors import UnresolvedCode

BASE = "class Base:\n    known = {}\n    def __init_subclass__(cls):\n        Base.known[cls.__name__] = cls\n"
LAZY_SUBCLASS = {
    "main.py": "def stage():\n    import a\n    from base import Base\n    return Base.known['A']().f()\n",
    "base.py": BASE,
    "a.py": "from base import Base\nfrom u import u\nclass A(Base):\n    def f(self):\n        return u()\n",
    "u.py": "def u():\n    return 1\n",
}


def test_a_subclass_that_is_imported_for_its_registration(project: Any) -> None:
    project.write(LAZY_SUBCLASS)
    assert project.changed({"u.py": "def u():\n    return 2\n"}) == {"code/u.u"}
    assert project.changed({"u.py": "def u():\n    return 2  # the same\n"}) == set()


def test_a_subclass_that_is_found_by_dunder_subclasses(project: Any) -> None:
    files = {
        "main.py": "import a\nfrom base import B\ndef stage():\n    return [k().f() for k in B.__subclasses__()]\n",
        "base.py": "class B: ...\n",
        "a.py": "from base import B\nclass A(B):\n    def f(self):\n        return 1\n",
    }
    project.write(files)
    assert project.changed({"a.py": files["a.py"].replace("1", "2")})
    assert project.changed({"a.py": files["a.py"].replace("1", "2") + "# end\n"}) == set()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    "effect",
    [
        "math.floor = lambda x: {}",
        "fractions.Fraction.limit_denominator = lambda self: {}",
        "os.environ['SOME_SETTING'] = '{}'",
        "sys.setrecursionlimit(900{})",
    ],
)
def test_what_an_import_does_to_a_library_counts(
    project: Any, monkeypatch: pytest.MonkeyPatch, effect: str, lazy: bool
) -> None:
    # only so that each is put back afterwards
    monkeypatch.setattr(math, "floor", math.floor)
    monkeypatch.setattr(fractions.Fraction, "limit_denominator", fractions.Fraction.limit_denominator)
    monkeypatch.setenv("SOME_SETTING", "")
    limit = sys.getrecursionlimit()
    main = "def stage():\n    import patch\n" if lazy else "import patch\ndef stage():\n"
    head = "import fractions, math, os, sys\nOTHER = 1\n"
    try:
        project.write({"main.py": main + "    return 1\n", "patch.py": head + effect.format(1) + "\n"})
        assert project.changed({"patch.py": head + effect.format(2) + "\n"}) == {"code/patch.<import>"}
        assert project.changed({"patch.py": head.replace("1", "5") + effect.format(2) + "\n"}) == set()
    finally:
        sys.setrecursionlimit(limit)


def test_what_an_import_only_tells_does_not_count(project: Any) -> None:
    project.write(
        {"main.py": "import told\ndef stage(): ...\n", "told.py": "import logging\nlogging.captureWarnings(0)\n"}
    )
    assert project.changed({"told.py": "import logging\nlogging.captureWarnings(False)\nprint(1)\n"}) == set()


REGISTRY = {
    "main.py": "def stage():\n    import p\n    return p.f()\n",
    "p/__init__.py": "from .h import f\nfrom . import impl\n",
    "p/h.py": "T = {}\ndef f():\n    return T['x']()\n",
    "p/impl.py": "from .h import T\ndef g():\n    return 1\nT['x'] = g\n",
}
DECORATED = REGISTRY | {
    "p/h.py": "T = {}\ndef f():\n    return T['g']()\ndef put(g):\n    T[g.__name__] = g\n    return g\n",
    "p/impl.py": "from .h import put\n@put\ndef g():\n    return 1\n",
}
PATCHED = {
    "main.py": "def stage():\n    import h, patch\n    return h.f()\n",
    "h.py": "def f():\n    return 0\n",
    "patch.py": "import h\ndef g():\n    return 1\nh.f = g\n",
}


@pytest.mark.parametrize(
    ("files", "edited"), [(REGISTRY, "p/impl.py"), (DECORATED, "p/impl.py"), (PATCHED, "patch.py")]
)
def test_what_a_lazy_import_registers_is_in_the_key_before_and_after(
    project: Any, files: dict[str, str], edited: str
) -> None:
    """Else such a stage would be called changed during its run, and never be stored in a new process."""
    project.write(files)
    before = project.key()
    assert sys.modules["main"].stage() == 1
    assert project.keys.of(sys.modules["main"].stage) == before
    assert project.changed({edited: files[edited].replace("1", "2")})


def test_what_this_process_registers_by_itself_counts(project: Any) -> None:
    project.write(REGISTRY)
    before = project.key()
    stage = sys.modules["main"].stage
    stage()
    vars(sys.modules["p.h"])["T"]["x"] = lambda: 3  # of no module that the stage reaches
    assert project.keys.of(stage) != before


def test_docstrings_count_where_code_reads_them(project: Any) -> None:
    text = "def f():\n    'one'\ndef stage():\n    return {}\n"
    project.write({"main.py": text.format("f.__doc__")})
    assert project.changed({"main.py": text.replace("one", "two").format("f.__doc__")}) == {
        "code/main.f.<documentation>"
    }
    project.write({"main.py": text.format("f()")})
    assert project.changed({"main.py": text.replace("one", "two").format("f()")}) == set()


def test_a_global_that_is_nested_too_deep_is_refused_in_words(project: Any) -> None:
    project.write({"main.py": "deep = []\nfor _ in range(5000):\n    deep = [deep]\ndef stage():\n    return deep\n"})
    with pytest.raises(UnresolvedCode, match=r"main\.deep"):
        project.key()


def test_a_bound_method_is_its_function_and_its_object(project: Any) -> None:
    class Scale:
        def __init__(self, by: int) -> None:
            self.by = by

        def times(self, x: int) -> int:
            return x * self.by

    def key(method: Any) -> str:
        return project.keys.of(method).digest

    two = Scale(2)
    assert key(two.times) == key(two.times) == key(Scale(2).times)
    assert key(two.times) != key(Scale(3).times)
    before = key(two.times)
    two.by = 5
    assert key(two.times) != before
    with pytest.raises(UnresolvedCode, match="self"):
        key(Scale(iter([])).times)  # type: ignore[arg-type]


def test_a_stage_that_is_a_bound_method_is_its_object_too(project: Any, cache: cachec.Cache) -> None:
    @dataclasses.dataclass
    class Scale:
        by: int

        @cache.stage
        def times(self, x: int) -> int:
            return x * self.by

    def key(method: Any) -> str:
        return project.keys.of(method).digest

    assert key(Scale(2).times) == key(Scale(2).times) != key(Scale(3).times)

    def closing(method: Any) -> Any:
        return lambda: method(1)

    assert key(closing(Scale(2).times)) == key(closing(Scale(2).times)) != key(closing(Scale(3).times))


def test_a_module_is_found_though_the_current_folder_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os, cachec; os.rmdir(os.getcwd())\n"
        f"cache = cachec.Cache({str(tmp_path / 'cache')!r})\n"
        "@cache.stage(name='s', version='1')\n"
        "def s(x):\n    import json, cachec.nothing_there\n    return x\n"
        "try: s(1)\nexcept ModuleNotFoundError: print('as without a cache')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=gone, capture_output=True, text=True, env={**os.environ})
    assert done.stdout == "as without a cache\n", done.stderr


CLASS = "class C:\n    x = 1\n    y: int = 2\n    def m(self):\n        return self.x + self.y\n"


@pytest.mark.parametrize("edit", [("x = 1", "x = 3"), ("= 2", "= 3")])
def test_a_process_that_runs_the_old_class_has_another_key_than_the_new_file(
    project: Any, edit: tuple[str, str]
) -> None:
    project.write({"main.py": "def stage():\n    import h\n    return h.C().m()\n", "h.py": CLASS})
    before = project.key()
    stage = sys.modules["main"].stage
    stage()
    assert project.keys.of(stage) == before  # importing it changes nothing
    project.write({"h.py": CLASS.replace(*edit)})
    running = project.keys.of(stage)
    assert running != project.key()


def test_class_attributes_that_are_made_into_something_else_are_no_difference(project: Any) -> None:
    text = """
        import enum
        from typing import NamedTuple
        class E(enum.Enum):
            A = 1
            B = (1, 2)
        class N(NamedTuple):
            x: int = 1
        class C:
            __slots__ = ("a",)
            x = 1
            if x:
                x = 2
            y = 1
            y = 2
            b, c = 1, 2
    """
    project.write({"main.py": "def stage():\n    import h\n    return h.E.A, h.N(), h.C\n", "h.py": text})
    before = project.key()
    sys.modules["main"].stage()
    assert project.keys.of(sys.modules["main"].stage) == before


SCRIPT = """
import collections, sys, cachec
from cachec.key import option_encoding
from cachec.key.code.fingerprint import CodeKeys
import other

cache = cachec.Cache({store!r}, log="off")
REGISTRY, COUNT = {{}}, 0
class Base: ...
class Child(Base):
    size = {child}
def keep(f): REGISTRY[f.__name__] = f; return f
def key(x): return {kept}
keep(key)
def extra(x): return {extra}
collections.UserDict.extra = extra
def helper(x): return {helper}
@cache.stage
def stage(x): return REGISTRY["key"](helper(x))
def drive(times):
    global COUNT
    for number in range(times):
        COUNT += 1
        print(stage(number), {driven})
drive(3)
for number in range(2): stage(number)
cache.close() if {driven} else None
keys = CodeKeys(lambda path: None, lambda v, p: option_encoding.encode(v, lambda v, p: None, p))
print(keys.of(stage.__wrapped__).digest)
print("the end", {driven})
"""


@pytest.mark.long
def test_of_a_script_counts_what_is_reached_and_what_it_hands_over(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("")

    def digest(**numbers: int) -> str:
        given = {"child": 1, "kept": 1, "helper": 1, "extra": 1, "driven": 0, **numbers}
        (tmp_path / "demo.py").write_text(SCRIPT.format(store=str(tmp_path / "store"), **given))
        words = [sys.executable, "demo.py"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-2]

    first = digest()
    assert digest(driven=1) == first
    assert len({first, digest(child=2), digest(kept=2), digest(helper=2), digest(extra=2)}) == 5


#: A global, and what changes it without making another of it.
CHANGED_IN_PLACE = [
    ("{1: 2}.get", "Z.__self__[1] = 5"),
    ("[1, 2].index", "Z.__self__.reverse()"),
    ("{1}.__contains__", "Z.__self__.add(2)"),
    ("{1: 2}.__getitem__", "Z.__self__[1] = 5"),
    ("collections.OrderedDict({1: 2}).get", "Z.__self__[1] = 5"),
    ("functools.partial({1: 2}.get, 1)", "Z.func.__self__[1] = 5"),
    ("[{1: 2}.get]", "Z[0].__self__[1] = 5"),
    ("staticmethod({1: 2}.get)", "Z.__func__.__self__[1] = 5"),
    ("numpy.vectorize({1: 2}.get)", "Z.pyfunc.__self__[1] = 5"),
    ("argparse.Namespace(a=[1])", "Z.a.append(2)"),
    ("string.Template('$a')", "Z.template = 'b'"),
    ("fractions.Fraction(1, 2)", "Z._numerator = 5"),
    ("collections.UserDict(a=1)", "Z['a'] = 2"),
]


@pytest.mark.parametrize(
    "place", ["Z = {}\n", "class A:\n    z = {}\nZ = vars(A)['z']\n"], ids=["global", "in a class"]
)
@pytest.mark.parametrize(("made", "change"), CHANGED_IN_PLACE)
def test_a_value_that_is_changed_in_place_is_another(project: Any, made: str, change: str, place: str) -> None:
    modules = "import argparse, collections, fractions, functools, numpy, string\n"
    used = "A" if "class A" in place else "Z"
    project.write({"main.py": f"{modules}{place.format(made)}def stage(): return {used}\n"})
    main = project.load()
    before = project.keys.of(main.stage).digest
    assert project.keys.of(main.stage).digest == before
    exec(change, vars(main))
    assert project.keys.of(main.stage).digest != before


def test_what_a_class_holds_of_a_library_is_changed_in_place(project: Any) -> None:
    text = "import configparser\nclass A:\n    z = configparser.ConfigParser()\ndef stage(): return A.z.sections()\n"
    project.write({"main.py": text})
    main = project.load()
    before = project.keys.of(main.stage).digest
    assert project.keys.of(main.stage).digest == before
    main.A.z.add_section("q")
    assert project.keys.of(main.stage).digest != before


@pytest.mark.parametrize(
    ("made", "change"),
    [
        ("numpy.ones(3).sum", "Z.__self__.fill(2)"),
        ("numpy.polynomial.Polynomial([1.0, 2.0])", "Z.coef[0] = 4"),
        ("numpy.poly1d([1.0, 2.0])", "Z.coeffs[0] = 4"),
    ],
)
def test_an_array_that_a_library_holds_is_changed_in_place(
    project: Any, cache: cachec.Cache, made: str, change: str
) -> None:
    project.write({"main.py": f"import numpy\nZ = {made}\ndef stage(): return Z is None\n"})
    main = project.load()
    stage = cache.stage(main.stage)
    before = cache.call(stage)[1].key
    assert cache.call(stage)[1].key == before
    exec(change, vars(main))
    assert cache.call(stage)[1].key != before


@pytest.mark.parametrize("name", ["__eq__", "__repr__", "__init__", "method"])
def test_a_method_that_was_put_in_by_code_without_a_file_counts(project: Any, name: str) -> None:
    project.write(
        {
            "main.py": "import dataclasses\n@dataclasses.dataclass\n"
            "class A:\n    x: int = 1\n    def method(self): return 1\n"
            "def stage(): return repr(A(1)), A(1) == A(1), A(1).method()\n"
        }
    )
    main = project.load()
    seen = {project.keys.of(main.stage).digest}
    for number in range(2):
        exec(f"A.{name} = lambda *_: {number}", {"A": main.A, "__name__": "patches"})
        seen.add(project.keys.of(main.stage).digest)
        exec(f"def {name}(*_): return {number + 7}\nA.{name} = {name}", {"A": main.A, "__name__": "patches"})
        seen.add(project.keys.of(main.stage).digest)
    assert len(seen) == 5


def test_a_method_that_a_decorator_of_the_project_writes_counts(project: Any) -> None:
    """As attrs does: by ``exec``, and named after the class."""
    project.write(
        {
            "main.py": "import json, pathlib\n"
            "def sized(cls):\n"
            "    names = {}\n"
            "    size = pathlib.Path(__file__).with_name('size.json').read_text()\n"
            "    exec('def size(self): return ' + size, names)\n"
            "    names['size'].__qualname__ = f'{cls.__qualname__}.size'\n"
            "    cls.size = names['size']\n"
            "    return cls\n"
            "@sized\nclass A: pass\n"
            "def stage(): return A().size()\n",
            "size.json": "1",
        }
    )
    assert project.changed({"size.json": "2"}) == {"code/main.A"}
