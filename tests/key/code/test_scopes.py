"""Which names a piece of syntax takes from outside, against the rules of the language."""

# Programs are easier to read as they are.
# ruff: noqa: E501

from __future__ import annotations

import ast
import textwrap

import pytest

from cachec.key.code.code_objects import code_uses
from cachec.key.code.scopes import ImportUse, scan, scan_function


def free(text: str) -> set[str]:
    node = ast.parse(textwrap.dedent(text)).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return {".".join(chain) for chain in scan_function(node).refs}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(a, /, b, *c, d, **e): return a, b, c, d, e, g", {"g"}),
        ("def f():\n x = y\n return x", {"y"}),
        ("def f():\n return x\n x = 1", set()),
        ("def f():\n global x\n x = 1\n return x", {"x"}),
        ("def f():\n return a.b.c(d.e)", {"a.b.c", "d.e"}),
        ("def f():\n a.b = 1", {"a"}),
        ("def f():\n del a.b", {"a"}),
        ("def f():\n a.b += c", {"a", "c"}),
        ("def f():\n return g(x).y", {"g", "x"}),
        ("def f(x):\n return [y for y in x if z]", {"z"}),
        ("def f():\n return [x for x in x]", {"x"}),
        ("def f():\n return {a: b for a, b in c for d in a if (e := d)}, e", {"c"}),
        ("def f():\n return lambda x, y=z: x + w", {"z", "w"}),
        ("def f():\n def g(x=a): return x, h, y\n y = 1\n return g", {"a", "h"}),
        ("def f():\n x = 1\n def g():\n  nonlocal x\n  x = 2\n  return x", set()),
        ("def f():\n x = 1\n def g():\n  global x\n  return x", {"x"}),
        ("def f():\n class A(B):\n  x = 1\n  y = x\n  def g(self): return x\n return A", {"B", "x"}),
        ("def f():\n class A:\n  x = [1]\n  y = [i for i in x]", set()),
        ("def f():\n for x in y: pass\n else: z\n return x", {"y", "z"}),
        ("def f():\n with a as b, c as (d, e): return b, d, e", {"a", "c"}),
        ("def f():\n try: pass\n except A as e: return e", {"A"}),
        ("def f():\n try: a\n except B: c\n else: d\n finally: g", {"a", "B", "c", "d", "g"}),
        ("def f():\n try: a\n except* B as e: c(e)\n else: d\n finally: g", {"a", "B", "c", "d", "g"}),
        ("def f(x):\n match x:\n  case [a, *b]: return a, b\n  case {'k': c, **d}: return c, d\n  case P(e) as g: return e, g\n  case Q.r: pass", {"P", "Q.r"}),
        ("def f(x: T = u) -> V:\n y: W = x\n return y", set()),
        ("def f():\n import a.b, c as d\n from e import g as h\n return a, d, h, c, g", {"c", "g"}),
        ("async def f():\n async for x in y: await z\n async with a as b: return b", {"y", "z", "a"}),
        ("def f():\n if TYPE_CHECKING:\n  x\n else:\n  y", {"y"}),
        ("def f():\n return f'{a:{b}}'", {"a", "b"}),
        ("def f():\n (x := y)\n return x", {"y"}),
        ("def f(a):\n a[b] = c", {"b", "c"}),
        ("def f():\n return super().g()", {"super"}),
    ],
)  # fmt: skip
def test_free_names(text: str, names: set[str]) -> None:
    assert free(text) == names


def test_decorators_and_defaults_belong_to_the_statement_not_to_the_function() -> None:
    text = "@a\ndef f(x=b): return c"
    assert free(text) == {"c"}
    assert {chain[0] for chain in scan(ast.parse(text).body).refs} == {"a", "b", "c"}


def test_imports() -> None:
    text = """
        def f():
            import a.b
            import c.d as e
            from .g import h as i, j
            try:
                import k
            except ImportError:
                k = None
            return a.b.x(e.y), i.z, k
    """
    node = ast.parse(textwrap.dedent(text)).body[0]
    assert isinstance(node, ast.FunctionDef)
    assert set(scan_function(node).imports) == {
        ImportUse("a.b", 0, "", None, False),
        ImportUse("a", 0, "", ("b", "x"), False),
        ImportUse("c.d", 0, "", ("y",), False),
        ImportUse("g", 1, "h", ("z",), False),
        ImportUse("g", 1, "j", None, False),
        ImportUse("k", 0, "", (), True),
    }


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("importlib.import_module('a.b')", {"a.b"}),
        ("__import__('a')", {"a"}),
        ("sys.modules['a']", {"a"}),
        ("sys.modules.get('a')", {"a"}),
    ],
)
def test_imports_by_a_constant_name(expression: str, names: set[str]) -> None:
    uses = scan(ast.parse(expression).body)
    assert {use.module for use in uses.imports} == names
    assert uses.computed == ()


@pytest.mark.parametrize(
    "expression",
    [
        *("importlib.import_module(x)", "__import__(x)", "import_module('.a', 'b')", "sys.modules[x]"),
        *("runpy.run_path(x)", "runpy.run_module(x)", "importlib.util.spec_from_file_location(x, y)"),
        *("loader.exec_module(x)", "loader.load_module(x)", "pkgutil.find_loader(x)"),
    ],
)
def test_imports_by_a_computed_name(expression: str) -> None:
    assert len(scan(ast.parse(expression).body).computed) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def f(x): return len(x) + a.b.c(x) + g",
        "def f(x):\n def h(): return a.b(x, g)\n return [h() for i in x]",
        "def f():\n import p.q as r\n from .s import t\n return r, t, a.b",
    ],
)
def test_bytecode_tells_the_same(text: str) -> None:
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    namespace: dict[str, object] = {}
    exec(text, namespace)
    syntax, code = scan_function(node), code_uses(namespace["f"].__code__)  # type: ignore[attr-defined]
    assert set(code.refs) == set(syntax.refs)
    assert {(use.module, use.level) for use in code.imports} == {(use.module, use.level) for use in syntax.imports}
