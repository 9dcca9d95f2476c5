"""What counts as a single change of a source, and what is none."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.operators import lines_of, mutants

#: A source, and what it becomes; empty for what changes nothing that a test could see.
CHANGES = {
    "condition": ("if a:\n    x()", {"if not (a):\n    x()", "if a:\n    pass"}),
    "negated": ("b = c if not a else d", {"b = c if (a) else d"}),
    "comparison": ("x = a < b", {"x = (a <= b)"}),
    "identity": ("x = a is b", {"x = (a is not b)"}),
    "and": ("x = a and b and c", {"x = (a or b or c)"}),
    "comprehension": ("x = [a for a in b if a]", {"x = [a for a in b if not (a)]"}),
    "statement": ("a.b()", {"pass"}),
    "assignment to an attribute": ("a.b = c", {"pass"}),
    "assignment to a name": ("a = c", set()),
    "addition": ("a += c", {"pass"}),
    "raise": ("raise E(1, 'of what')", {"pass"}),
    "raise again": ("raise", {"pass"}),
    "what can't be": ("if a == b: raise AssertionError(c)", {"if (a != b): raise AssertionError(c)"}),
    "advice": ("os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)", set()),
    "sleep": ("time.sleep(0.5)", set()),
    "number": ("x = 5", {"x = 6", "x = (4)"}),
    "truth": ("x = True", {"x = False"}),
    "word": ("x('word')", {"pass", "x('wordX')"}),
    "bytes": ("x(b'word')", {"pass", "x(b'wordX')"}),
    "token": ("x = 'word'", set()),
    "token in place of nothing": ("x = a or 'word'", {"x = (a and 'word')"}),
    "returned token": ("def f(): return 'a' if b == c else 'd'", {"def f(): return 'a' if (b != c) else 'd'"}),
    "empty": ("def f():\n    return ''", {"def f():\n    return 'X'"}),
    "limit": ("x = 1 << 20", set()),
    "named limit": ("_MAX_NAMES = 5", set()),
    "time": ("f(timeout=5)", {"pass", "f()"}),
    "sentence": ("x = 'some words'", set()),
    "formatted sentence": ("x = f'some words of {a}'", set()),
    "formatted": ("x = f'{a}:{b}'", {"x = f':{b}'", "x = f'{a}:'"}),
    "tuple": ("x = (a, b)", {"x = (b,)", "x = (a,)"}),
    "list": ("x = [a]", {"x = list()"}),
    "set": ("x = {a, b}", {"x = {a}", "x = {b}"}),
    "set of one": ("x = {a}", {"x = set()"}),
    "dict": ("x = {a: b, **c}", {"x = {a: b}", "x = {**c}"}),
    "unpacked tokens": ("a, b = 'word', 5", {"a, b = 'word', 6", "a, b = 'word', (4)"}),
    "unpacked": ("a, b = b, a", set()),
    "returned tuple": ("def f():\n    return a, b", set()),
    "keyword": ("x = f(a, b=c)", {"x = f(a)"}),
    "keyword of a text": ("x = f(a, encoding='utf-8', hint='word')", set()),
    "label of a hash": ("x = Hasher('name')", set()),
    "hashed": ("x = hasher.part(f'name {a}', b'word', b or c)", {"x = hasher.part(f'name {a}', b'word', (b and c))"}),
    "decorator": ("@a.b(1)\ndef f(): ...", {"\ndef f(): ..."}),
    "cache": ("@functools.cache\ndef f(): ...", set()),
    "default": ("def f(a=None, *, b=False): ...", {"def f(a=None, *, b=True): ..."}),
    "annotation": ("x: tuple[int, str] = a", set()),
    "subscript": ("x = Callable[[int], str]", set()),
    "slots": ("__slots__ = ('a', 'b')", set()),
    "class": ("class C(M, tag=True, gc=False): ...", {"class C(M, tag=False, gc=False): ..."}),
    "docstring": ("def f():\n    'word'", set()),
    "documented attribute": ("class C:\n    'word'\n    'word'", set()),
    "repr": ("def __repr__(self):\n    return 'word'", set()),
    "type checking": ("if TYPE_CHECKING:\n    x = 1", set()),
    "warning": ("warnings.warn('word', stacklevel=2)", {"pass"}),
    "import": ("from a import b", set()),
    "assertion": ("assert a == b", set()),
    "loop": ("while a == b:\n    continue", {"while (a != b):\n    continue", "while a == b:\n    pass"}),
    "early return": (
        "def f():\n    'word'\n    a = b\n    g(a)",
        {"def f():\n    'word'\n    return; a = b\n    g(a)", "def f():\n    'word'\n    a = b\n    pass"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_source_becomes(name: str) -> None:
    source, expected = CHANGES[name]
    found = [each.applied(source.encode()).decode() for each in mutants("m.py", source.encode())]
    assert sorted(found) == sorted(expected)
    for text in found:
        ast.parse(text)


SOURCE = b"""\
NAMES = (
    "a",
)
def f(a=1):
    if a:
        g(
            a,
        )
    return NAMES
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (7, [range(7, 8), range(6, 9), range(5, 10)]),
        (5, [range(5, 6), range(5, 6), range(5, 10)]),
        (4, [range(5, 10)]),
        (2, [range(9, 10)]),
    ],
    ids=["inside of a statement", "condition", "default", "constant"],
)
def test_the_lines_whose_tests_are_related(line: int, expected: list[range]) -> None:
    assert list(lines_of(SOURCE, line)) == expected
