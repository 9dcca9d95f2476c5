"""Which code that ran a key holds already: what it does not hold is a read of its own."""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any

import pytest

from cachec.key.code.key_coverage import Coverage

TEXT = """
import functools
one, two = lambda x: x + 1, lambda x: x + 2
first = lambda x: x + 3; second = lambda x: x + 4
long = (
    lambda x: x + 5); after = lambda x: x + 6
def plain(x): return [n + x for n in range(3)]
@functools.lru_cache
def decorated(x):
    def inner(): return x
    return inner
class Class:
    def method(self): return 1
def other(x): return x
"""


def nested(code: CodeType) -> list[CodeType]:
    return [code, *(one for each in code.co_consts if isinstance(each, CodeType) for one in nested(each))]


def held(project: Any, use: str) -> set[str]:
    """The code of ``TEXT``, by its qualified name or a lambda's number, that the key of a stage with ``use`` holds."""
    project.write({"main.py": f"import helper\ndef stage(x): return {use}\n", "helper.py": TEXT})
    coverage = Coverage()
    coverage.add(project.key())
    path = str(project.root / "helper.py")
    source = project.keys.source(path)
    found = set()
    for code in nested(compile(TEXT, path, "exec", dont_inherit=True)):
        place = source.place_of(code)
        assert place is not None
        if coverage.holds_place(source, place):
            number = next((each for each in code.co_consts if type(each) is int), 0)
            found.add(f"lambda {number}" if code.co_name == "<lambda>" else code.co_qualname)
    return found - {"<module>"}


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("helper.first(x)", {"lambda 3"}),
        ("helper.second(x)", {"lambda 4"}),
        ("helper.long(x)", {"lambda 5"}),
        ("helper.after(x)", {"lambda 6"}),
        ("helper.other(x)", {"other"}),
        ("helper.decorated(x)", {"decorated", "decorated.<locals>.inner"}),
        ("helper.Class().method()", {"Class", "Class.method"}),
    ],
)
def test_a_statement_is_held_and_not_what_shares_its_line(project: Any, use: str, expected: set[str]) -> None:
    assert held(project, use) == expected


def test_what_a_function_holds_is_held_with_it(project: Any) -> None:
    comprehension = {"plain.<locals>.<listcomp>"} if sys.version_info < (3, 12) else set()
    assert held(project, "helper.plain(x)") == {"plain", *comprehension}


def test_a_module_as_a_whole(project: Any) -> None:
    project.write({"main.py": "import helper\ndef stage(n): return getattr(helper, n)\n", "helper.py": TEXT})
    coverage = Coverage()
    path = str(project.root / "helper.py")
    coverage.add(project.key())
    source = project.keys.source(path)
    assert coverage.holds_whole(source)
    assert coverage.holds_some(source)
    project.write({"helper.py": TEXT + "# another text\n"})
    other = project.new_keys().source(path)
    assert not coverage.holds_whole(other)
    assert not coverage.holds_some(other)
    assert not coverage.holds_place(other, (7, 8))


def test_code_that_its_source_no_longer_says_is_held_as_it_runs(project: Any) -> None:
    project.write({"main.py": "import helper\ndef stage(x): return helper.f(x)\n", "helper.py": "def f(x): return 1\n"})
    project.forget()
    stage = project.load().stage
    code = sys.modules["helper"].f.__code__
    project.write({"helper.py": "def f(x): return 22\n"})
    coverage = Coverage()
    coverage.add(project.new_keys().of(stage))
    path = str(project.root / "helper.py")
    assert coverage.holds_code(path, code)
    assert not coverage.holds_code(path, compile("def f(x): return 22", path, "exec").co_consts[0])
    assert not coverage.holds_code(path + "c", code)


def test_stages_are_told_by_identity() -> None:
    coverage, stage = Coverage(), object()
    coverage.stages.append(stage)
    assert coverage.holds_stage(stage)
    assert not coverage.holds_stage(object())
