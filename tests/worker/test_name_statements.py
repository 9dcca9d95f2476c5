"""A statement that only binds a name counts where code that ran may find the name, and nowhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from cachec.base.hashing import FileDigests
from cachec.key import source_parts
from cachec.model import Read
from cachec.worker.import_recorder import ImportRecorder

HELPER = """
import os
LIMIT = 3
OTHER: int = 4
TABLE = [f for f in (os.fspath,)]

def used(x): return x + LIMIT
def unused(x: int, y=None): return x - 1

class Model:
    width = 1
    def forward(self): return self.width

class Spare(Model):
    def forward(self): return 2
"""
USER = "import helper\n\ndef stage(x):\n    return {}\n"

#: What the stage does, an edit of ``helper.py`` that then counts, and a similar one that doesn't.
NAMED = {
    "a call": ("helper.used(1)", ("used(x):", "used(x, y=1):"), ("unused(x:", "unused(z, x:")),
    "a body": ("helper.used(1)", ("x + LIMIT", "x - LIMIT"), ("x - 1", "x - 2")),
    "a name that nothing has": ("helper.late", ("class Model", "def late(): pass\nclass Model"), ("x - 1", "x - 2")),
    "a text": ("helper.find('unused')", ("unused(x:", "unused(z, x:"), ("OTHER: int = 4", "OTHER: int = 5")),
    "a text of two names": (
        "helper.find('helper:OTHER')",
        ("OTHER: int = 4", "OTHER: int = 5"),
        ("LIMIT = 3", "LIMIT = 3 # three"),
    ),
    "texts of a tuple": ("helper.find(('Spare', 'b'))", ("return 2\n", "return 2\n    x = 3\n"), ("x - 1", "x - 2")),
    "what Python has built in": (
        "len(x)",
        ("class Model", "def len(x): return 1\nclass Model"),
        ("class Model", "def lens(x): return 1\nclass Model"),
    ),
    "a class": (
        "helper.Model",
        ("width = 1", "width = 2"),
        ("class Model:", "class Mode:\n    width = 2\nclass Model:"),
    ),
    "the base of a class that is named": (
        "helper.Spare",
        ("width = 1", "width = 2"),
        ("OTHER: int = 4", "OTHER: int = 5"),
    ),
    "a constant": ("helper.LIMIT", ("LIMIT = 3", "LIMIT = 4"), ("OTHER: int = 4", "OTHER: int = 5\nMORE = 6")),
    "a pattern": (
        "[1 for _ in x] if x else helper.Model",
        ("class Model:", "class Model:\n    z = 1"),
        ("OTHER: int", "OTHER: float"),
    ),
    "a sentence": ("helper.find('unused Spare things')", ("TABLE = [f ", "TABLE = [g "), ("unused(x:", "unused(z, x:")),
    "a data file's constants": ("'{}'.format(x)", ("OTHER: int = 4", "OTHER: int = 5"), ("unused(x:", "unused(z, x:")),
    "nothing": (
        "x",
        ("import os", "import os, re"),
        ("class Model:", "def new(): pass\nclass New: pass\nN = 1\nclass Model:"),
    ),
}

#: An edit that only binds a new name, and one that matters to nobody, whatever a run looks at.
NEW = [
    ("class Model", "def new(): pass\nclass Model"),
    ("class Model", "NEW = 1\nclass Model"),
    ("LIMIT = 3", "LIMIT = 3\nclass New: pass"),
]
NEUTRAL = [("x - 1", "x - 2"), ("LIMIT = 3", "LIMIT = 3  # three")]


class Ran:
    """Code that was told to have started."""

    def __init__(self, codes: list[CodeType]) -> None:
        self._codes = codes

    def begin_run(self) -> None:
        pass

    def codes(self) -> list[CodeType]:
        return self._codes

    def late(self) -> list[CodeType]:
        return self._codes

    def is_complete(self) -> bool:
        return True


class Project:
    def __init__(self, folder: Path) -> None:
        self._helper, self._user = folder / "helper.py", folder / "user.py"
        self._reads: list[Read] = []

    def run(self, expression: str, *, top: str = "", ran: tuple[str, ...] = (), unpickled: str = "") -> None:
        """The stage runs, and ``ran`` of the helper; a pickle names ``unpickled``."""
        imports = ImportRecorder(lambda path: True, contextlib.nullcontext)
        codes: list[CodeType] = []
        imports._heard("pickle.find_class", ("helper", unpickled))
        texts = {self._helper: (HELPER, ran), self._user: (top + USER.format(expression), ("stage",))}
        for path, (text, functions) in texts.items():
            path.write_text(text)
            code = compile(text, str(path), "exec", dont_inherit=True)
            codes += [each for each in _codes(code) if each.co_qualname in functions]
            imports.add(str(path), text.encode(), code)
        imports._started = Ran(codes)
        self._reads = imports.reads()

    def counts(self, old: str, new: str) -> bool:
        """Whether a read does not hold after an edit of the helper."""
        assert HELPER.count(old) == 1
        self._helper.write_text(HELPER.replace(old, new))
        digests = FileDigests()
        return any(source_parts.present(read, digests) != read.digest for read in self._reads if read.kind == "source")


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("torch._dynamo.convert_frame", "numba.core.bytecode"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return Project(tmp_path)


@pytest.mark.parametrize(("expression", "edit", "neutral"), NAMED.values(), ids=NAMED)
def test_what_is_named_counts(expression: str, edit: Any, neutral: Any, project: Project) -> None:
    project.run(expression, ran=("used",))
    assert project.counts(*edit)
    assert not project.counts(*neutral)


@pytest.mark.parametrize("word", sorted(source_parts.DYNAMIC))
def test_what_finds_names_makes_all_of_them_count(word: str, project: Project) -> None:
    project.run(f"(x.{word}, {word})")
    assert all(project.counts(*edit) for edit in NEW)
    assert not any(project.counts(*edit) for edit in NEUTRAL)
    project.run(f"x.{word}_")
    assert not any(project.counts(*edit) for edit in (*NEW, *NEUTRAL))


@pytest.mark.parametrize("word", sorted(source_parts.WITH_DATA))
def test_what_reads_names_from_data_makes_constants_count(word: str, project: Project) -> None:
    project.run(f"x.{word}(1)")
    assert project.counts("OTHER: int = 4", "OTHER: int = 5")
    assert not any(project.counts(*edit) for edit in (*NEW, *NEUTRAL))


def test_a_library_that_reads_settings_makes_constants_count(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "django.conf", type(sys)("django.conf"))
    project.run("1")
    assert project.counts("OTHER: int = 4", "OTHER: int = 5")
    assert not any(project.counts(*edit) for edit in (*NEW, *NEUTRAL))


@pytest.mark.parametrize("top", ["from helper import *\n", "import importlib\nm = importlib.import_module('helper')\n"])
def test_who_imports_all_names_reads_those_that_it_uses(top: str, project: Project) -> None:
    project.run("len(x), m.LIMIT", top=top)
    assert project.counts("class Model", "def len(x): return 1\nclass Model")
    assert project.counts("LIMIT = 3", "LIMIT = 4")
    assert not any(project.counts(*edit) for edit in (*NEW, *NEUTRAL))


@pytest.mark.parametrize("top", ["names = dir()\n", "import helper\nX = vars(helper)\n", "def f(x=eval('1')): pass\n"])
def test_statements_of_a_module_run_too(top: str, project: Project) -> None:
    project.run("1", top=top)
    assert all(project.counts(*edit) for edit in NEW)


def test_a_statement_that_names_a_function(project: Project) -> None:
    project.run("1", top="import helper\nchosen = [helper.unused]\n")
    assert project.counts("unused(x:", "unused(z, x:")
    assert not project.counts("x - 1", "x - 2")


def test_a_class_of_which_a_method_ran(project: Project) -> None:
    edit = ("return 2\n", "return 2\n    depth = 2\n")
    project.run("1", ran=("Spare.forward",))
    assert project.counts(*edit)
    project.run("1")
    assert not project.counts(*edit)


def test_a_class_that_was_unpickled(project: Project) -> None:
    edit = ("return 2\n", "return 2\n    depth = 2\n")
    project.run("1", unpickled="Spare.Inner")
    assert project.counts(*edit)
