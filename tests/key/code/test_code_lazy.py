"""Code keys of what is imported inside functions: read from source, never imported."""

# Programs are easier to read as they are.
# ruff: noqa: E501

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from cachec.errors import CapturedWeights, UnresolvedCode

FILES = {
    "main.py": """
        def stage(x):
            from pkg.ops import scale
            import pkg.consts as c
            import pkg.deep.more
            return scale(x) * c.SIZE + pkg.deep.more.offset(x)
    """,
    "pkg/__init__.py": "VERSION = 1\n",
    "pkg/ops.py": """
        from .helper import shift as moved, unused
        from . import consts
        import math
        FACTOR = consts.BASE * 2
        def scale(x, by=FACTOR):
            '''Documented.'''
            return moved(x) * by + math.pi
        def unrelated(x):
            return x
    """,
    "pkg/helper.py": """
        def shift(x): return x + inner(x)
        def inner(x): return 1
        def unused(x): return 2
    """,
    "pkg/consts.py": "BASE = 3\nSIZE = 4\nOTHER = 5\n",
    "pkg/deep/__init__.py": "",
    "pkg/deep/more.py": """
        from ..helper import inner
        def offset(x): return inner(x)
    """,
}


@pytest.fixture
def lazy(project: Any) -> Any:
    project.write(FILES)
    return project


def test_parts_and_nothing_is_imported(lazy: Any) -> None:
    assert set(lazy.parts()) == {
        "code/main.stage",
        "code/pkg.consts.BASE",
        "code/pkg.consts.SIZE",
        "code/pkg.deep.more.offset",
        "code/pkg.helper.inner",
        "code/pkg.helper.shift",
        "code/pkg.ops.FACTOR",
        "code/pkg.ops.scale",
    }
    assert not [name for name in sys.modules if name == "pkg" or name.startswith("pkg.")]


def test_the_key_is_the_same_before_and_after_the_import(lazy: Any) -> None:
    lazy.forget()
    stage = lazy.load().stage
    before = lazy.keys.of(stage).digest
    stage(1)
    assert "pkg.deep.more" in sys.modules
    assert lazy.keys.of(stage).digest == before
    assert lazy.new_keys().of(stage).digest == before


@pytest.mark.parametrize(
    ("file", "old", "new", "parts"),
    [
        ("pkg/ops.py", "moved(x) * by", "moved(x) / by", {"code/pkg.ops.scale"}),
        ("pkg/ops.py", "BASE * 2", "BASE * 3", {"code/pkg.ops.FACTOR"}),
        ("pkg/helper.py", "return 1", "return 7", {"code/pkg.helper.inner"}),
        ("pkg/helper.py", "x + inner", "x - inner", {"code/pkg.helper.shift"}),
        ("pkg/consts.py", "BASE = 3", "BASE = 8", {"code/pkg.consts.BASE"}),
        ("pkg/deep/more.py", "return inner(x)", "return -inner(x)", {"code/pkg.deep.more.offset"}),
        ("pkg/ops.py", "'''Documented.'''", "'''Otherwise.'''  # said", set()),
        ("pkg/ops.py", "def unrelated(x):", "def unrelated(y):", set()),
        ("pkg/helper.py", "return 2", "return 9", set()),
        ("pkg/consts.py", "OTHER = 5", "OTHER = 6", set()),
        ("pkg/__init__.py", "VERSION = 1", "VERSION = 2", set()),
    ],
)
def test_edits(lazy: Any, file: str, old: str, new: str, parts: set[str]) -> None:
    assert old in FILES[file]
    assert lazy.changed({file: FILES[file].replace(old, new)}) == parts


def test_an_edit_shows_at_the_next_call_of_the_same_process(lazy: Any) -> None:
    lazy.forget()
    stage = lazy.load().stage
    before = lazy.keys.of(stage).digest
    lazy.write({"pkg/helper.py": FILES["pkg/helper.py"].replace("return 1", "return 7")})
    after = lazy.keys.of(stage).digest
    assert after != before
    assert lazy.key().digest == after
    lazy.write({"pkg/helper.py": FILES["pkg/helper.py"]})
    assert lazy.keys.of(lazy.load().stage).digest == before


def test_an_edit_after_the_import_never_gives_the_key_of_the_new_source(lazy: Any) -> None:
    lazy.forget()
    stage = lazy.load().stage
    before = lazy.keys.of(stage).digest
    stage(1)
    lazy.write({"pkg/helper.py": FILES["pkg/helper.py"].replace("return 1", "return 7")})
    stale = lazy.keys.of(stage)
    assert "code/pkg.helper.inner (as imported)" in {part.label for part in stale.parts}
    assert len({before, stale.digest, lazy.key().digest}) == 3


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        ("pkg.helper", "inner", lambda x: 5),
        ("pkg.consts", "SIZE", 9),
        ("pkg.consts", "SIZE", 4.0),
        ("pkg.ops", "scale", len),
    ],
)
def test_what_is_replaced_at_run_time(lazy: Any, module: str, name: str, value: object) -> None:
    lazy.forget()
    stage = lazy.load().stage
    stage(1)
    before = lazy.keys.of(stage).digest
    setattr(lazy.load(module), name, value)
    assert lazy.keys.of(stage).digest != before


def test_a_method_replaced_at_run_time(project: Any) -> None:
    project.write(
        {
            "main.py": "def stage():\n    from things import A\n    return A().f()\n",
            "things.py": "class A:\n    def f(self): return self.g()\n    def g(self): return 1\ndef other(self): return 2\n",
        }
    )
    stage = project.load().stage
    before = project.keys.of(stage).digest
    stage()
    assert project.keys.of(stage).digest == before
    things = project.load("things")
    things.A.g = things.other
    assert project.keys.of(stage).digest != before


@pytest.mark.parametrize(
    ("statement", "is_told"),
    [
        ("A, B = 1, 2", True),
        ("[A, B] = 1, 2", True),
        ("(X, A), B = (0, 1), 2", True),
        ("B = A = 1", True),
        ("A, *B = 1, 2", False),
        ("A, B = pair()", False),
        ("A, A = 0, 1", False),
    ],
)
def test_values_that_are_bound_together(project: Any, statement: str, is_told: bool) -> None:
    project.write(
        {
            "main.py": "def stage():\n    from things import A\n    return A\n",
            "things.py": f"def pair(): return 1, 2\n{statement}\n",
        }
    )
    stage = project.load().stage
    before = project.keys.of(stage).digest
    stage()
    assert project.keys.of(stage).digest == before
    project.load("things").A = 7
    assert (project.keys.of(stage).digest != before) is is_told


def test_decorated_classes_and_functions_are_the_same_after_the_import(project: Any) -> None:
    project.write(
        {
            "main.py": "def stage():\n    from things import A, f, g\n    return A(), f(), g()\n",
            "things.py": """
                import dataclasses, functools, contextlib
                @dataclasses.dataclass(frozen=True)
                class A:
                    x: int = 1
                    @property
                    def y(self): return self.x
                    @staticmethod
                    def z(): return 1
                @functools.lru_cache
                def f(): return 1
                @contextlib.contextmanager
                def g(): yield
            """,
        }
    )
    stage = project.load().stage
    before = project.keys.of(stage).digest
    stage()
    assert project.keys.of(stage).digest == before


# --- how names are found


@pytest.mark.parametrize(
    "body",
    [
        "from pkg.a import f\n    return f()",
        "from pkg import a\n    return a.f()",
        "import pkg.a\n    return pkg.a.f()",
        "import pkg.a as b\n    return b.f()",
        "from pkg import f\n    return f()",
        "import pkg\n    return pkg.f()",
        "from pkg import *\n    return 1" if False else "import pkg as p\n    return p.a.f()",
        "import importlib\n    return importlib.import_module('pkg.a').f()",
        "import pkg.a\n    return getattr(pkg.a, x)()",
        "def inner():\n        from pkg.a import f\n        return f()\n    return inner()",
        "return [__import__('pkg.a')]",
    ],
)
def test_ways_to_import(project: Any, body: str) -> None:
    project.write(
        {
            "main.py": f"def stage(x=0):\n    {body}\n",
            "pkg/__init__.py": "from .a import f\nfrom . import a\n",
            "pkg/a.py": "def f(): return 1\n",
        }
    )
    assert project.changed({"pkg/a.py": "def f(): return 2\n"})
    assert project.changed({"pkg/a.py": "def f(): return (2)  # said\n"}) == set()


def test_relative_imports_inside_a_function(project: Any) -> None:
    project.write(
        {
            "main.py": "from app.work import stage\n",
            "app/__init__.py": "",
            "app/work/__init__.py": "def stage():\n    from .near import f\n    from ..far import g\n    return f() + g()\n",
            "app/work/near.py": "def f(): return 1\n",
            "app/far.py": "def g(): return 1\n",
        }
    )
    assert project.changed({"app/work/near.py": "def f(): return 2\n"}) == {"code/app.work.near.f"}
    assert project.changed({"app/far.py": "def g(): return 2\n"}) == {"code/app.far.g"}


def test_imports_of_an_eager_helper(project: Any) -> None:
    project.write(
        {
            "main.py": "from helpers import f\ndef stage(): return f()\n",
            "helpers.py": "def f():\n    from later import g\n    return g()\n",
            "later.py": "def g(): return 1\n",
        }
    )
    assert project.changed({"later.py": "def g(): return 2\n"}) == {"code/later.g"}


@pytest.mark.parametrize(
    "ops",
    [
        "R = {}\ndef register(f):\n    R[f.__name__] = f\n    return f\n@register\ndef a(x): return {a}\ndef run(x): return R['a'](x)\n",
        "from impl import *\ndef a(x): return {a}\ndef run(x): return 1\n",
        "def a(x): return {a}\ndef run(x): return globals()['a'](x)\n",
        "class B: ...\nclass A(B):\n    def a(x): return {a}\ndef run(x): return B.__subclasses__()\n",
        "def __getattr__(name): return lambda: 1\ndef a(x): return {a}\ndef run(x): return 1\n",
    ],
)
def test_whole_modules(project: Any, ops: str) -> None:
    main = "def stage(x):\n    from ops import run\n    return run(x)\n"
    project.write({"main.py": main, "ops.py": ops.replace("{a}", "x"), "impl.py": "def other(): return 1\n"})
    assert "code/ops" in project.changed({"ops.py": ops.replace("{a}", "-x")})
    stage = project.load().stage
    before = project.keys.of(stage).digest
    stage(1)
    assert project.keys.of(stage).digest == before


def test_a_star_import_follows_what_it_brings(project: Any) -> None:
    project.write(
        {
            "main.py": "def stage(x):\n    from ops import run\n    return run(x)\n",
            "ops.py": "from impl import *\n",
            "impl.py": "def run(x): return 1\n",
        }
    )
    assert "code/impl" in project.changed({"impl.py": "def run(x): return 2\n"})


def test_a_package_that_registers_counts_where_a_submodule_is_imported(project: Any) -> None:
    project.write(
        {
            "main.py": "def stage(x):\n    from pkg.sub import f\n    return f(x)\n",
            "pkg/__init__.py": "import sub2\nsub2.switch(1)\n",
            "pkg/sub.py": "def f(x): return x\n",
            "sub2.py": "def switch(n): ...\n",
        }
    )
    assert project.changed({"pkg/__init__.py": "import sub2\nsub2.switch(2)\n"}) == {"code/pkg"}


def test_cycles(project: Any) -> None:
    project.write(
        {
            "main.py": "def stage(x):\n    import one\n    return one.f(x)\n",
            "one.py": "import two\ndef f(x): return two.g(x)\n",
            "two.py": "import one\ndef g(x): return one.f(x - 1)\n",
        }
    )
    assert set(project.parts()) == {"code/main.stage", "code/one.f", "code/two.g"}


# --- outside of the project, and absent


def test_distributions_and_the_standard_library(project: Any) -> None:
    project.wheels = {"wheel"}
    project.write(
        {
            "main.py": "def stage(x):\n    import json, ctypes.util\n    from wheel.sub import f\n    return f(x)\n",
            "wheel/__init__.py": "",
            "wheel/sub.py": "def f(x): return x\n",
        }
    )
    assert project.key().distributions == {"wheel"}
    assert project.changed({"wheel/sub.py": "def f(x): return -x\n"}) == set()
    assert "wheel" not in sys.modules
    project.wheels = set()
    assert "code/wheel.sub.f" in project.changed({"wheel/sub.py": "def f(x): return x\n"})


def test_cachec_itself_adds_nothing_and_its_plugins_do(project: Any) -> None:
    project.write(
        {
            "main.py": "def stage(x):\n    import cachec.programs.program\n    from cachec_own import f\n    return f(x)\n",
            "cachec_own.py": "from cachec.errors import CachecError\ndef f(x): raise CachecError\n",
        }
    )
    assert set(project.parts()) == {"code/main.stage", "code/cachec_own.f"}


def test_an_optional_module(project: Any) -> None:
    project.write(
        {"main.py": "def stage():\n    try:\n        import extra\n    except ImportError:\n        extra = None\n"}
    )
    stage = project.load().stage
    before = project.keys.of(stage)
    project.write({"unrelated.txt": "a file beside it"})
    assert project.keys.of(stage) is before
    project.write({"extra.py": "VALUE = 1\n"})
    assert project.keys.of(stage).digest != before.digest


def test_a_missing_module_is_reported(project: Any) -> None:
    project.write({"main.py": "def stage():\n    import extra\n    return extra.x\n"})
    with pytest.raises(UnresolvedCode, match=r"module extra, imported in main\.stage"):
        project.key()
    assert project.key(has_version=True)


@pytest.mark.parametrize("annotation", ["A", "'A'"])
def test_annotations_of_a_module_that_is_imported_inside_count_where_they_are_asked_for(
    project: Any, annotation: str
) -> None:
    helper = f"import typing\nfrom kinds import A, B\ndef f(x: {annotation}): return x\ndef hints(): return HOW(f)\n"
    for how, counts in (("typing.get_type_hints", True), ("repr", False)):
        project.write(
            {
                "main.py": "def stage():\n    import helper\n    return helper.hints()\n",
                "helper.py": helper.replace("HOW", how),
                "kinds.py": "A = int\nB = int\n",
            }
        )
        assert project.changed({"kinds.py": "A = int\nB = str\n"}) == set()
        assert bool(project.changed({"kinds.py": "A = str\nB = str\n"})) == counts


def test_a_module_that_comes_first_from_now_on(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write({"main.py": "def stage():\n    import extra\n    return extra.x\n", "extra.py": "x = 1\n"})
    stage = project.load().stage
    before = project.keys.of(stage).digest
    project.write({"first/extra.py": "x = 2\n"})
    assert project.keys.of(stage).digest == before
    monkeypatch.syspath_prepend(str(project.root / "first"))
    assert project.keys.of(stage).digest != before


def test_a_module_that_appears_in_a_folder_that_is_looked_at_first(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write({"main.py": "def stage():\n    import extra\n    return extra.x\n", "extra.py": "x = 1\n"})
    project.write({"first/empty.txt": ""})
    monkeypatch.syspath_prepend(str(project.root / "first"))
    stage = project.load().stage
    before = project.keys.of(stage).digest
    project.write({"first/extra.py": "x = 2\n"})
    assert project.keys.of(stage).digest != before


def test_an_extension_module_counts_by_content(project: Any) -> None:
    from importlib.machinery import EXTENSION_SUFFIXES

    project.write({"main.py": "def stage():\n    import native\n    return native.f()\n"})
    library = project.root / f"native{EXTENSION_SUFFIXES[0]}"
    library.write_bytes(b"one")
    stage = project.load().stage
    before = project.keys.of(stage)
    assert "code/native" in {part.label for part in before.parts}
    library.write_bytes(b"other")
    assert project.keys.of(stage).digest != before.digest


def test_code_under_type_checking_is_not_followed(project: Any) -> None:
    project.write(
        {
            "main.py": """
                from __future__ import annotations
                from typing import TYPE_CHECKING
                if TYPE_CHECKING:
                    from nowhere import Thing
                def stage(x: Thing) -> Thing:
                    if TYPE_CHECKING:
                        import nowhere
                    y: Thing = x
                    return y
            """
        }
    )
    assert set(project.parts()) <= {"code/main.stage", "code/main.TYPE_CHECKING"}


def test_a_module_that_is_nowhere_is_told_of_what_runs_and_not_of_what_is_guarded(project: Any) -> None:
    project.write({"main.py": "def stage():\n    from helpers import f\n    return f()\n"})
    project.write({"helpers.py": "def f():\n    import nowhere_to_be_found\n"})
    with pytest.raises(UnresolvedCode, match=r"nowhere_to_be_found, imported in helpers\.f"):
        project.key()
    guarded = "def f():\n    try:\n        import nowhere_to_be_found\n    except ImportError:\n        pass\n"
    project.write({"helpers.py": guarded})
    assert project.key()


def test_weights_of_a_module_that_was_imported(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class WeightSet:
        pass

    module = types.ModuleType("cachec.weights")
    module.WeightSet = WeightSet  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cachec.weights", module)
    project.write({"main.py": "def stage():\n    from data import W\n    return W\n", "data.py": "W = dict()\n"})
    stage = project.load().stage
    assert project.keys.of(stage)
    project.load("data").W = WeightSet()
    with pytest.raises(CapturedWeights, match=r"data\.W"):
        project.keys.of(stage)


def test_a_relative_import_of_a_module_that_is_imported_late(project: Any) -> None:
    project.write(
        {
            "main.py": "def stage():\n    from app.near import f\n    return f()\n",
            "app/__init__.py": "",
            "app/near.py": "from .base import g\nfrom . import table\ndef f(): return g(), table.T\n",
            "app/base.py": "def g(): return 1\ndef unused(): return 1\n",
            "app/table.py": "T = 1\nU = 1\n",
        }
    )
    assert not project.changed({"app/base.py": "def g(): return 1\ndef unused(): return 2\n"})
    assert project.changed({"app/base.py": "def g(): return 2\ndef unused(): return 2\n"}) == {"code/app.base.g"}
    assert project.changed({"app/table.py": "T = 2\nU = 1\n"})
