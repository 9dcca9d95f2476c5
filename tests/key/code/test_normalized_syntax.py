"""Normalised syntax: equal for equal programs, different for different ones, and the same on every Python."""

# Programs are easier to read as they are.
# ruff: noqa: E501

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import textwrap
from pathlib import Path
from types import CodeType

import pytest

from cachec.key.code import normalized_syntax
from cachec.key.code.module_sources import Sources
from tests.key.conftest import other_pythons

CORPUS = {
    "function": """
        @decorator(1)
        def f(a, /, b: int = 2, *args: str, c, d=4, **kwargs) -> float:
            \"\"\"Documented.\"\"\"
            global g
            return a + b
        async def h():
            async for x in y:
                await x
            async with a as b, c:
                pass
            return [i async for i in x if i]
    """,
    "class": """
        class A(B, metaclass=C):
            'doc'
            x: int = 1
            y: 'str'
            def m(self): ...
    """,
    "assignments": "a = b = 1\na += 1; a -= 2; a *= 3; a /= 4; a //= 5; a %= 6; a **= 7\na @= b; a <<= 1; a >>= 1; a |= 1; a &= 1; a ^= 1\na, *b = c\n(a): int = 2\nx[1:2, ::3], y.z = 1, 2\ndel a, b[0], c.d\n",
    "loops": "for i in range(3):\n    if i: continue\n    break\nelse:\n    pass\nwhile True:\n    break\nelse:\n    x\n",
    "branches": "if a:\n    b\nelif c:\n    d\nelse:\n    e\nassert a, 'b'\nassert c\n",
    "errors": """
        try:
            raise A from b
        except (A, B) as e:
            raise
        except C:
            pass
        except:
            pass
        else:
            x
        finally:
            y
        try:
            z
        except* A as e:
            w
    """,
    "with": "with a as b, c:\n    pass\nwith (a as b,):\n    pass\n",
    "imports": "import a, b.c as d\nfrom . import e\nfrom ..f import g as h, i\nfrom j import *\nfrom __future__ import annotations\n",
    "scopes": "def f():\n    x = 1\n    def g():\n        nonlocal x\n        global y, z\n        x = y\n    yield x\n    z = yield\n    yield from g()\n",
    "match": """
        match x:
            case 1 | -2 | 3 + 4j | 'a' | None | True: pass
            case [a, *rest, b]: pass
            case {'k': v, **more}: pass
            case Point(1, y=2) as p if p: pass
            case a.b: pass
            case [*_]: pass
            case _: pass
    """,
    "expressions": "a and b or not c; a if b else c; lambda x, *y, z=1, **w: x; (x := 1); -a; +a; ~a; not a\na < b <= c > d >= e == f != g; a is b; a is not b; a in b; a not in b\na + b - c * d / e // f % g ** h @ i << j >> k | l & m ^ n\nf(*a, **b, c=d); a[b]; a[b:c:d]; a[..., 1]; a[*b]; a.b.c\n",
    "displays": "[], (), {}, [1, *a], (1,), {1, *a}, {1: 2, **a}, [i for i in a for j in b if i if j], {i for i in a}, {i: j for i, j in a}, (i for i in a)\n",
    "constants": "0; 1; 1.0; True; False; None; ...; 'a'; u'a'; b'a'; r'\\n'; 'a' 'b'; 1e400; 1e-400; 0.1; 2j; 1_000; 0xff; 123456789012345678901234567890; '\\ud800'; '\\x00'; b'\\xff'; '日本'\n",
    "f-strings": "f'a{b}c{d!r:>{w}}e'; f'{x=}'; f'{x = !s:^{a}.{b}}'; f'{{}}'; f''; f'a' 'b' f'c{d}'; 'a' f'{b}' 'c'; f'{a:}'; f'{a:%Y-%m-%d}'; rf'\\d{a}'; f'''{\na}'''; f'{a!s}{b!a}'; f'{x:{y}{z}}'; f'{1}{2}' f'{3}'; f'{a:{{}}}' if 0 else f'{lambda_}'\n",
}

#: SHA-256 of each, of every supported Python. A change here is a change of every key: raise ``syntax.FORMAT`` with it.
GOLDEN = {
    "function": "3772ee67cee1d4805186d9a86cfc300de0948fd04bc1e220f9aaa7cca7126abc",
    "class": "27c5b3b6ad50f0f8887d7bebe49ed151ebdf907bbb75fe58f5d8fbc8f1590079",
    "assignments": "5573bf88b1ee1d829bab81f4d1210da64578161aa9390afd999cdb616656f058",
    "loops": "ec0b906b1bfaa4648c7bcf09f2cc651c5ee2b874d955895636a911b76a41b46a",
    "branches": "0793c52386bfc89b9fe24f5a7a9fe02b3a84918a1daae38d30b03f7f750d4e15",
    "errors": "faee73b24e0d4536cd8d77688a1aa97538abbc6e3109a332daa24b548fb57a75",
    "with": "aa5a8a8096af4f33cb1ed38d7b598e66be924bfcd197e5094a7a2a6df96dc4d7",
    "imports": "0394aa7da2ecd18e195a11b40640a2d293129184fddb9ecedec68e87dbc40ba0",
    "scopes": "e9592be87c76519e7f07f3ccb82961352223c1ee845285369583b54919a22dd3",
    "match": "8f74d254efd3f4fd2559cf036432945320b0b8ba9d7f1d4cf4d5ecfb34c0eaca",
    "expressions": "7b54ea51ea73f3c85512c9717809d169c212cd87ca8ee75e1fc7c3262f8c9d95",
    "displays": "2c174581bf83a7f4acbfcc1fc420f5e6649ab046906bbe96f5495f8be9f0a2c7",
    "constants": "631a33e88731742c839f48810148d39d0c1df9bdbd0025cf357c356a77923e89",
    "f-strings": "af54082325aa24f2c0a6427b6109cc052163076386caf1528f1c169b1c45fa48",
}


#: Pairs that differ, in syntax that Python 3.11 does not have.
NEWER = [
    ("def f[T](x: T): ...", "def f(x: T): ..."),
    ("class A[T]: ...", "class A: ..."),
    ("def f[T: int](x): ...", "def f[T: str](x): ..."),
    ("type A = int", "type A = str"),
    ("f'{a['b']}'", "f'{a['c']}'"),
]


def digests() -> dict[str, str]:
    return {name: _digest(text) for name, text in CORPUS.items()}


def _digest(text: str) -> str:
    return hashlib.sha256(normalized_syntax.normalise(ast.parse(textwrap.dedent(text)))).hexdigest()


def test_golden_digests() -> None:
    assert digests() == GOLDEN


def test_the_corpus_holds_every_kind_of_node() -> None:
    """So that a kind that a later Python writes otherwise can't go unseen. The left out ones have their own tests."""
    found = {type(node) for text in CORPUS.values() for node in ast.walk(ast.parse(textwrap.dedent(text)))}
    every = {
        cls
        for base in (ast.stmt, ast.expr, ast.pattern, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
        for cls in base.__subclasses__()
        if cls.__module__ == "ast" and cls.__name__ not in {"TypeAlias", "TemplateStr", "Interpolation"}
    }
    deprecated = {"Num", "Str", "Bytes", "NameConstant", "Ellipsis", "Index", "ExtSlice", "AugLoad", "AugStore", "Param", "Suite"}  # fmt: skip
    assert {cls.__name__ for cls in every - found} - deprecated == set()


@pytest.mark.long
def test_other_pythons_give_the_same_bytes() -> None:
    interpreters = other_pythons()
    if not interpreters:
        pytest.skip("no other supported Python was found on PATH or under pyenv")
    script = (
        "import ast, hashlib, importlib.util, json, sys, textwrap\n"
        f"spec = importlib.util.spec_from_file_location('syntax', {normalized_syntax.__file__!r})\n"
        "syntax = importlib.util.module_from_spec(spec); spec.loader.exec_module(syntax)\n"
        "corpus = json.load(sys.stdin)\n"
        "parse = lambda text: ast.parse(textwrap.dedent(text))\n"
        "if sys.version_info >= (3, 12):\n"
        "    for one, other in json.loads(sys.argv[1]):\n"
        "        assert syntax.normalise(ast.parse(one)) != syntax.normalise(ast.parse(other)), one\n"
        "json.dump({n: hashlib.sha256(syntax.normalise(parse(t))).hexdigest() for n, t in corpus.items()}, sys.stdout)\n"
    )
    for place in interpreters:
        run = subprocess.run([place, "-I", "-W", "ignore", "-c", script, json.dumps(NEWER)], input=json.dumps(CORPUS), capture_output=True, text=True, check=False)  # fmt: skip
        assert run.returncode == 0, f"{place}: {run.stderr}"
        assert json.loads(run.stdout) == digests(), place


def _same(one: str, other: str) -> bool:
    return normalized_syntax.normalise(ast.parse(one)) == normalized_syntax.normalise(ast.parse(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a = 1", "a   =   1  # said"),
        ("f(a,\n  b)", "f(a, b,)"),
        ("'''doc'''\na", "a"),
        ("def f():\n    'doc'\n    return 1", "def f():\n    # said\n    return 1"),
        ("class A:\n    'doc'\n    x = 1", "class A:\n    x = 1"),
        ("async def f():\n    'doc'\n    x", "async def f():\n    x"),
        ("u'a'", "'a'"),
        ("a = (1)", "a = 1"),
        ("x = 1 # type: int", "x = 1"),
        ("255", "0xff"),
        ("a; b", "a\nb"),
        ("if a:\n  b\nelse:\n  if c:\n    d", "if a:\n  b\nelif c:\n  d"),
        ("f'a{b}' 'c' 'd'", "f'a{b}cd'"),
        ("f'{a:}'", "f'{a}'"),
    ],
)
def test_equal_programs(one: str, other: str) -> None:
    assert _same(f"0\n{one}" if one.startswith("u'") else one, f"0\n{other}" if other == "'a'" else other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = True"),
        ("x = 0", "x = False"),
        ("x = 1", "x = '1'"),
        ("x = 'a'", "x = b'a'"),
        ("x = 0.0", "x = -0.0"),
        ("x = 0.0", "x = 0j"),
        ("x = 1e400", "x = 1e300"),
        ("x = None", "x = ..."),
        ("x = None", "x = 'None'"),
        ("x = 1", "y = 1"),
        ("a + b", "b + a"),
        ("(a + b) + c", "a + (b + c)"),
        ("f(a, b)", "f((a, b))"),
        ("f(a=b)", "f(b=a)"),
        ("f(*a)", "f(**a)"),
        ("[a, b]", "(a, b)"),
        ("{1: 2}", "{1, 2}"),
        ("{None: a}", "{**a}"),
        ("from . import a", "from .. import a"),
        ("from a import b", "from .a import b"),
        ("import a as b", "import b as a"),
        ("global a, b", "global ab"),
        ("a < b < c", "(a < b) < c"),
        ("f'{a}'", "f'{a!r}'"),
        ("f'{a}'", "f'{a:x}'"),
        ("f'a{b}'", "f'{b}a'"),
        ("f'a'", "f'b'"),
        ("x = f'{a}b'", "x = 'ab'"),
        ("def f(a, b): 0", "def f(a, *, b): 0"),
        ("def f(a, b): 0", "def f(a, b, /): 0"),
        ("def f(a, b=1): 0", "def f(a=1, b=1): 0"),
        ("def f(*, a, b=1): 0", "def f(*, a=1, b): 0"),
        ("def f(a: int): 0", "def f(a: str): 0"),
        ("@a\ndef f(): 0", "def f(): 0"),
        ("def f(): 0", "async def f(): 0"),
        ("x: int", "(x): int"),
        ("with a, b as c: 0", "with (a, b) as c: 0"),
        ("try:\n  a\nexcept A: 0", "try:\n  a\nexcept* A: 0"),
        ("match a:\n  case None: 0", "match a:\n  case True: 0"),
        ("match a:\n  case b: 0", "match a:\n  case _: 0"),
        ("match a:\n  case A(b=c): 0", "match a:\n  case A(c=b): 0"),
        ("if a:\n  b\nc", "if a:\n  b\n  c"),
        ("a[1:]", "a[:1]"),
        ("x = 's1:a'", "x = 'a'"),
    ],
)
def test_different_programs(one: str, other: str) -> None:
    assert not _same(one, other)


def test_a_docstring_counts_where_it_is_none() -> None:
    assert not _same("def f():\n    x\n    'a'", "def f():\n    x\n    'b'")
    assert not _same("def f():\n    return 'a'", "def f():\n    return 'b'")


def test_very_deep_and_very_large_syntax() -> None:
    deep = "a = " + " + ".join(["x"] * 900)
    assert _same(deep, deep + "  # said")
    assert not _same(deep, deep + " + y")
    large = "a = " + hex(3**20000)
    assert not _same(large, large + "0")


def test_dropped_decorators() -> None:
    tree = ast.parse("@a\n@b(1)\ndef f(): 0")
    plain = ast.parse("@b(1)\ndef f(): 0")
    bare = ast.parse("def f(): 0")
    first, second = (id(node) for node in tree.body[0].decorator_list)  # type: ignore[attr-defined]
    assert normalized_syntax.normalise(tree, {first}) == normalized_syntax.normalise(plain)
    assert normalized_syntax.normalise(tree, {first, second}) == normalized_syntax.normalise(bare)


def test_nodes_that_no_text_spells_are_refused() -> None:
    with pytest.raises(TypeError, match="frozenset"):
        normalized_syntax.normalise(ast.Constant(value=frozenset()))  # type: ignore[arg-type]


if __name__ == "__main__":
    print(json.dumps(digests(), indent=4))


def test_a_function_is_found_by_its_code_however_it_is_decorated(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text("@one\n@two(\n    3)\ndef f(x): return x\n@one\ndef g(x): return x\ndef h(x): return x\n")
    source = Sources().load(str(path))
    assert source is not None
    codes = [
        each for each in compile(path.read_text(), str(path), "exec", 0, True).co_consts if isinstance(each, CodeType)
    ]
    found = [source.match(code) for code in codes]
    assert [node and getattr(node, "name", "") for node in found] == ["f", "g", "h"]
