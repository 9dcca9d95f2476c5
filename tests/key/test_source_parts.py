"""What counts of the text of a module, by function and statement; which modules a folder has."""

from __future__ import annotations

import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachec.base.bounded_dict import BoundedDict
from cachec.base.hashing import FileDigests, digest_bytes
from cachec.key import source_parts
from cachec.key.code import normalized_syntax
from cachec.model import Read
from tests.key.tools.test_own_checkout import Rows

TEXT = '''
"""Documentation."""
import numpy as np

SCALE = 2

def used(x, y=SCALE):
    "Says something."
    # a comment
    def inner(z):
        return z + 1
    return inner(x) * [lambda: y, lambda: x][0]()

def unused(x):
    return x - 1

def numbers():
    yield 1

class Model:
    """A model."""
    width: int = 3

    def forward(self, x):
        return used(x)

    async def later(self):
        return 1

if __name__ == "__main__":
    def report():
        print(used(3))
    report()
'''

NEUTRAL = {
    "a comment": ("# a comment", "# another comment\n\n"),
    "a docstring of the module": ('"""Documentation."""', '"""Other."""'),
    "a docstring of a function": ('"Says something."', '"Says more."'),
    "a docstring of a class": ('"""A model."""', ""),
    "spaces": ("x - 1", "(x  -  1)"),
    "the guard": ("    report()\n", "    report(); report()\n"),
    "what the guard defines": ("print(used(3))", "print(used(4))"),
}
#: An edit, and the functions of which one must be counted to see it; none of them where the statements change.
EDITS: dict[str, tuple[str, str, set[str]]] = {
    "a constant": ("SCALE = 2", "SCALE = 3", set()),
    "an import": ("import numpy", "import jax.numpy", set()),
    "a default": ("y=SCALE", "y=4", set()),
    "an argument": ("def unused(x)", "def unused(x, k=1)", set()),
    "a decorator": ("def unused", "@np.vectorize\ndef unused", set()),
    "an attribute of a class": ("width: int = 3", "width: int = 4", set()),
    "a new function": ("class Model", "def new(): pass\nclass Model", set()),
    "a generator": ("    yield 1", "    return 1", set()),
    "a coroutine": ("async def later", "def later", set()),
    "a body": ("x - 1", "x - 2", {"unused"}),
    "a method": ("return used(x)", "return used(2 * x)", {"Model.forward"}),
    "the body of a coroutine": ("return 1\n\nif", "return 2\n\nif", {"Model.later"}),
    "what a generator yields": ("yield 1", "yield 2", {"numbers"}),
    "a nested function": ("return z + 1", "return z + 2", {"used.<locals>.inner"}),
    "the first of two lambdas": ("lambda: y", "lambda: -y", {"used.<locals>.<lambda>"}),
    "the second of two lambdas": ("lambda: x", "lambda: -x", {"used.<locals>.<lambda>"}),
    "the order of two lambdas": ("[lambda: y, lambda: x]", "[lambda: x, lambda: y]", {"used.<locals>.<lambda>"}),
    "a default of a nested function": ("def inner(z)", "def inner(z=1)", {"used", "used.<locals>.inner"}),
}
NAMES = frozenset(source_parts.table(TEXT.encode()).functions)


def test_the_functions_of_a_text() -> None:
    nested = {"used.<locals>.inner", "used.<locals>.<lambda>"}
    assert {"used", "unused", "numbers", "Model.forward", "Model.later", "report"} | nested == NAMES


def edited(old: str, new: str) -> bytes:
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new).encode()


@pytest.mark.parametrize("edit", NEUTRAL.values(), ids=NEUTRAL)
def test_a_neutral_edit_changes_nothing(edit: tuple[str, str]) -> None:
    text = edited(*edit)
    assert source_parts.digest(text, None) == source_parts.digest(TEXT.encode(), None)
    for name in NAMES - {"report"}:
        assert source_parts.digest(text, [name]) == source_parts.digest(TEXT.encode(), [name])


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_changes_what_counts_it(edit: tuple[str, str, set[str]]) -> None:
    old, new, functions = edit
    text = edited(old, new)
    assert source_parts.digest(text, None) != source_parts.digest(TEXT.encode(), None)
    changing = {
        name for name in NAMES if source_parts.digest(text, [name]) != source_parts.digest(TEXT.encode(), [name])
    }
    assert changing == (functions or NAMES)
    assert (source_parts.digest(text, []) != source_parts.digest(TEXT.encode(), [])) == (not functions)
    assert source_parts.digest(text, NAMES) != source_parts.digest(TEXT.encode(), NAMES)


def test_what_the_guard_defines_counts_by_name() -> None:
    text = edited("print(used(3))", "print(used(4))")
    assert source_parts.digest(text, ["report"]) != source_parts.digest(TEXT.encode(), ["report"])


def test_the_other_branch_of_the_guard_runs_at_import() -> None:
    text = b"if __name__ == '__main__':\n    x = %d\nelse:\n    y = %d\n"
    assert source_parts.digest(text % (1, 1), []) == source_parts.digest(text % (2, 1), [])
    assert source_parts.digest(text % (1, 1), []) != source_parts.digest(text % (1, 2), [])


def test_a_name_that_is_absent_counts_as_absent() -> None:
    before, after = b"import a\n", b"import a\ndef f(): return 1\n"
    assert source_parts.digest(before, ["f"]) != source_parts.digest(after, ["f"])
    assert source_parts.digest(before, ["f"]) != source_parts.digest(before, [])
    assert source_parts.digest(before, ["f"]) == source_parts.digest(b"import a # here\n", ["f"])


def test_functions_of_one_name_count_together() -> None:
    text = "try:\n    import a\n    def f(): return 1\nexcept ImportError:\n    def f(): return %d\n"
    one, two = ((text % number).encode() for number in (2, 3))
    assert source_parts.digest(one, ["f"]) != source_parts.digest(two, ["f"])
    assert source_parts.digest(one, []) == source_parts.digest(two, [])


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield each
            yield from codes(each)


NAMED = """
def f():
    global g, C
    def g(): return 1
    class C:
        def m(self): return [x for x in (lambda: 1)()]
    class D:
        global h
        def h(self): return 1
        def __private(self, x=lambda: 2): return (lambda y: y for y in x)
        names = [n for n in (lambda: 3)()]
    return lambda: (lambda: 4)
h = (lambda x: x for _ in f(lambda: 1))
@f(lambda: 1)
class E(metaclass=f(lambda: 2)):
    async def a(self) -> (lambda: 1):
        return [x async for x in self]
"""


def test_every_code_object_has_its_unit() -> None:
    """All that runs is found in a table by its own name: a run counts what it executes."""
    folder = Path(sysconfig.get_path("stdlib"))
    texts = [NAMED.encode(), *((folder / f"{name}.py").read_bytes() for name in ("typing", "dataclasses", "ast"))]
    for text in texts:
        table = source_parts.table(text)
        compiled = list(codes(compile(text, "m.py", "exec", dont_inherit=True)))
        functions = [code for code in compiled if code.co_flags & 1]
        unknown = {code.co_qualname for code in functions if table.function_of(code.co_qualname) is None}
        assert unknown <= {"F", "_Func"}  # type aliases of Python 3.12's own typing
        met = {table.function_of(code.co_qualname) for code in functions} - {"", None}
        assert met == table.functions.keys()


def test_a_comprehension_is_a_part_of_its_function() -> None:
    table = source_parts.table(
        b"class A:\n    def f(self): return 1\n    xs = [1 for _ in y]\ndef g(): return {1 for _ in y}"
    )
    assert table.function_of("A.f") == "A.f"
    assert table.function_of("A.f.<locals>.<genexpr>") == "A.f"
    assert table.function_of("A.<listcomp>") == ""
    assert table.function_of("g.<locals>.<setcomp>") == "g"
    assert table.function_of("h") is None
    assert table.function_of("A.h") is None


def test_a_text_that_is_not_python() -> None:
    with pytest.raises(SyntaxError):
        source_parts.digest(b"def f(:", None)
    reads = [source_parts.read_of("/m.py", text, None) for text in (b"def f(:", b"def g(:")]
    assert reads[0].digest != reads[1].digest


BOUND = b"""
import lib
A = 1
def f(x=A): return x
if lib:
    B = 2
class C:
    x = 3
def g(): return 4
D = lib.made("of.words", "of a sentence")
"""


def test_what_statements_bind_and_read() -> None:
    table = source_parts.table(BOUND)
    assert [each.binds for each in table.statements] == ["", "A", "f", "", "C", "g", ""]
    assert [each.binds for each in table.statements if each.is_constant] == ["A"]
    assert set(table.names) - {""} == {"lib", "A", "made", "of", "words"}


def test_a_statement_counts_where_its_name_is_marked_or_ran() -> None:
    def same(old: bytes, new: bytes, names: list[str] | None, *named: str) -> bool:
        texts = BOUND, BOUND.replace(old, new)
        one, other = (source_parts.table(text).digest(names, None, source_parts.marks(named)) for text in texts)
        return one == other

    assert same(b"def g()", b"def g(y)", [])
    assert same(b"def g()", b"def g(y)", [], "f")
    assert not same(b"def g()", b"def g(y)", [], "f", "g", "h")
    assert not same(b"def g()", b"def g(y)", ["g"])
    assert not same(b"def g()", b"def g(y)", None)
    assert not same(b"x = 3", b"x = 4", ["C.method"])
    assert not same(b"B = 2", b"B = 3", [])
    assert same(b"def g()", b"def new(): pass\ndef g()", [], "f")
    assert not same(b"def g()", b"def new(): pass\ndef g()", [], "new")


def test_of_a_script_those_count_that_were_executed(tmp_path: Path, digests: FileDigests) -> None:
    """A function that is new above the statement that ran shifts no others."""
    text = b"import a\ndef f(): pass\ndef g(): pass\nimport b\nrun()\nimport c\n"
    path = tmp_path / "main.py"
    path.write_bytes(text)
    for executed, later in ((4, b"import c"), (1, b"import b")):
        read = source_parts.read_of(str(path), text, ["f"], replayed=executed, named=source_parts.marks("h"))

        def holds(old: bytes, new: bytes, read: Read = read) -> bool:
            path.write_bytes(text.replace(old, new))
            return source_parts.present(read, digests) == read.digest

        assert holds(b"import a", b"import a  # same")
        assert holds(b"def g", b"def i(): pass\ndef g")
        assert holds(b"def g", b"X = 1\ndef g")
        assert holds(later, b"import d")
        assert not holds(b"import a", b"import d")
    assert source_parts.read_of(str(path), text, ["f"], replayed=4, named="").digest != read.digest


def test_a_mark_is_short() -> None:
    names = [f"name_{number}" for number in range(500)]
    assert len(source_parts.marks(names)) <= 3 * len(names)
    assert source_parts.marks(reversed(names)) == source_parts.marks(names)
    assert len({source_parts.mark(name) for name in names}) > 490


# --- reads


@pytest.fixture
def digests() -> FileDigests:
    return FileDigests(Rows())


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "m.py"
    path.write_text(TEXT)
    return path


def test_a_read_holds_after_a_neutral_edit(module: Path, digests: FileDigests) -> None:
    read = source_parts.read(str(module), ["used"], digests)
    assert source_parts.present(read, digests) == read.digest
    module.write_bytes(edited("# a comment", "#"))
    assert source_parts.present(read, digests) == read.digest
    module.write_bytes(edited("x - 1", "x - 2"))
    assert source_parts.present(read, digests) == read.digest
    module.write_bytes(edited("SCALE = 2", "SCALE = 3"))
    assert source_parts.present(read, digests) != read.digest


def test_equal_bytes_are_not_parsed(module: Path, digests: FileDigests, monkeypatch: pytest.MonkeyPatch) -> None:
    read = source_parts.read(str(module), None, digests)
    parsed: list[object] = []
    monkeypatch.setattr(normalized_syntax, "parse", parsed.append)
    monkeypatch.setattr(source_parts, "_TABLES", BoundedDict(1))
    assert source_parts.present(read, digests) == read.digest
    assert not parsed


def test_a_table_is_remembered_between_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, text = Rows(), TEXT.encode()
    monkeypatch.setattr(source_parts, "_TABLES", BoundedDict(1))
    table = source_parts.table(text, rows)
    monkeypatch.setattr(source_parts, "_TABLES", BoundedDict(1))
    assert source_parts.recall(digest_bytes(text), rows) == table
    monkeypatch.setattr(source_parts, "_TABLES", BoundedDict(1))
    assert source_parts.recall(digest_bytes(text), Rows()) is None


def test_a_damaged_memory_costs_only_time(monkeypatch: pytest.MonkeyPatch) -> None:
    damaged, text = Rows(), TEXT.encode()
    expected = source_parts.table(text)
    damaged[source_parts._row(digest_bytes(text))] = b"[["
    monkeypatch.setattr(source_parts, "_TABLES", BoundedDict(1))
    assert source_parts.table(text, damaged) == expected


@pytest.mark.parametrize("now", [None, b"def f(:"])
def test_a_file_that_is_gone_or_damaged(now: bytes | None, module: Path, digests: FileDigests) -> None:
    read = source_parts.read(str(module), None, digests)
    if now is None:
        module.unlink()
    else:
        module.write_bytes(now)
    assert source_parts.present(read, digests) != read.digest
    assert "helper.py" in source_parts.explain(read, digests, "helper.py")


@pytest.mark.parametrize(
    ("old", "new", "names", "expected"),
    [
        ("x - 1", "x - 2", None, ":14: the function unused changed"),
        ("return used(x)", "return x", ["Model.forward"], ":24: the function Model.forward changed"),
        ("SCALE = 2", "SCALE = 3", ["used"], ":5: the statement changed"),
        ("def unused", "def renamed", None, ":14: the function renamed is new"),
        ("def unused", "def renamed", ["unused"], ": the function unused is gone"),
        ("x - 1", "x - 2", ["used"], " is unchanged"),
    ],
)
def test_the_change_is_named(
    old: str, new: str, names: list[str] | None, expected: str, module: Path, digests: FileDigests
) -> None:
    read = source_parts.read(str(module), names, digests)
    module.write_bytes(edited(old, new))
    assert source_parts.explain(read, digests, "helper.py") == f"helper.py{expected}"
    source_parts._TABLES.drop(digest_bytes(TEXT.encode()))
    assert source_parts.explain(read, FileDigests(), "helper.py") == "helper.py changed"


# --- modules


def modules_digest(folder: Path, *names: str) -> str:
    found = source_parts.find_modules(str(folder), names, source_parts.list_folder(str(folder)))
    read = source_parts.read_of_modules(str(folder), found)
    assert source_parts.present_modules(read) == read.digest
    return read.digest


def test_the_modules_of_a_folder(tmp_path: Path) -> None:
    names = ["helper", "package", "space", "absent"]
    seen = []

    def look() -> str:
        seen.append(modules_digest(tmp_path, *names))
        return seen[-1]

    look()
    (tmp_path / "helper.py").touch()
    look()
    (tmp_path / "package").mkdir()
    look()
    (tmp_path / "package" / "__init__.py").touch()
    look()
    (tmp_path / "space").mkdir()
    look()
    (tmp_path / ("absent" + sysconfig.get_config_var("EXT_SUFFIX"))).touch()
    look()
    assert len(set(seen)) == len(seen)
    (tmp_path / "other.py").touch()
    (tmp_path / "package" / "part.py").touch()
    (tmp_path / "data.txt").touch()
    (tmp_path / "helper.py").write_text("x = 1")
    assert look() == seen[-2]
    (tmp_path / "helper.py").unlink()
    assert look() not in seen[:-1]


def test_a_folder_that_is_absent_has_no_modules(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert modules_digest(tmp_path / "empty", "a") == modules_digest(tmp_path / "absent", "a")
