"""What is kept of what files compile to: keys are the same with it and without, whatever was edited or damaged."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from cachec.key.code import module_sources
from tests.key.code.pythons.programs import HELPERS, PROGRAMS
from tests.key.conftest import Project
from tests.key.tools.test_own_checkout import Rows

FILES = {
    "main.py": """
        from other import twice
        OFFSET = 3
        def stage(x):
            return twice(x) + (lambda y: y + OFFSET)(x) + inner(x)
        def inner(x):
            def deeper(y): return y * 2
            return [deeper(each) for each in range(x)]
        """,
    "other.py": "def twice(x): return 2 * x\ndef unused(x): return x\n",
}


def kept(project: Project) -> dict[str, bytes]:
    return {name: row for name, row in project.rows.items() if name.startswith("digest:code:")}


@pytest.fixture
def filled(project: Project) -> Project:
    """A project that a process has keyed."""
    project.write(FILES)
    project.key()
    assert len(kept(project)) == 2
    return project


def fresh(project: Project) -> str:
    """The key of a process with nothing kept, of what is imported now."""
    return project.new_keys(Rows()).of(project.load().stage).digest


def test_a_second_process_compiles_nothing_and_writes_nothing(filled: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    before, rows = fresh(filled), dict(filled.rows)
    monkeypatch.setattr(Rows, "remember", None)
    filled.forget()
    stage = filled.load().stage
    monkeypatch.setattr(module_sources, "compile", None, raising=False)
    assert filled.keys.of(stage).digest == before
    assert filled.rows == rows


EDITS: dict[str, tuple[str, str, bool]] = {
    "a body": ("return twice(x)", "return 5 * twice(x)", True),
    "a constant in a lambda": ("y + OFFSET", "y + OFFSET + 1", True),
    "one that is inside": ("y * 2", "y * 4", True),
    "a default": ("def inner(x)", "def inner(x, z=1)", True),
    "a line above": ("OFFSET = 3", "\n# said\nOFFSET = 3", False),
    "a space": ("2 * x", "2  *  x", False),
    "what is not reached": ("def unused(x): return x", "def unused(x): return 7", False),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_seen_as_without_what_was_kept(filled: Project, edit: str) -> None:
    before = fresh(filled)
    old, new, is_seen = EDITS[edit]
    filled.write({name: textwrap.dedent(text).replace(old, new) for name, text in FILES.items()})
    after = filled.key().digest
    assert (after != before) is is_seen
    assert after == fresh(filled)
    assert len(kept(filled)) == 2  # an edit leaves no row behind


@pytest.mark.parametrize("edit", EDITS)
def test_what_was_imported_before_an_edit_is_told_from_what_is_kept_of_it(filled: Project, edit: str) -> None:
    """This process runs the old text, and another has kept what the new one compiles to."""
    stage = filled.load().stage
    old, new, _ = EDITS[edit]
    filled.write({name: textwrap.dedent(text).replace(old, new) for name, text in FILES.items()})
    other = Project(filled.root)
    for path in filled.root.glob("*.py"):
        source = module_sources.Sources(other.rows).load(str(path))
        assert source is not None
        source.match((lambda: 0).__code__)  # of no file: the text is compiled, and that is kept
    assert len(kept(other)) == 2
    assert filled.new_keys(other.rows).of(stage).digest == filled.new_keys(Rows()).of(stage).digest


DAMAGES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "nothing": lambda row, other: b"",
    "cut": lambda row, other: row[:-32],
    "cut in a digest": lambda row, other: row[:-1],
    "longer": lambda row, other: row + bytes(32),
    "a bit": lambda row, other: row[:40] + bytes((row[40] ^ 1,)) + row[41:],
    "another sum": lambda row, other: bytes((row[0] ^ 1,)) + row[1:],
    "that of another file": lambda row, other: other,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_row_is_made_again(filled: Project, damage: str) -> None:
    before, rows = fresh(filled), kept(filled)
    filled.rows.update(
        {
            name: DAMAGES[damage](row, other)
            for (name, row), other in zip(rows.items(), reversed(rows.values()), strict=True)
        }
    )
    assert filled.key().digest == before
    assert kept(filled) == rows


def test_another_text_of_the_same_code_objects_is_another(project: Project) -> None:
    """What is kept of a text says nothing of the next, though this process runs code of the first."""
    project.write({"main.py": "def stage(x): return x\n"})
    stage = project.load().stage
    project.key()
    project.write({"main.py": "def stage(x): return x + 1\n"})
    source = module_sources.Sources(project.rows).load(str(project.root / "main.py"))
    assert source is not None
    assert source.match(stage.__code__) is None


@pytest.mark.sampled
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_key_is_the_same_with_what_is_kept(project: Project, name: str) -> None:
    project.write({**HELPERS, "main.py": PROGRAMS[name]})
    first = project.key()
    second = project.key()
    assert kept(project)
    assert (second.digest, second.parts) == (first.digest, first.parts)
