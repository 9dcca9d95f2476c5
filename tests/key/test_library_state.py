"""What a program sets in libraries."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

import pytest

from cachec.key.canonical_forms import Forms
from cachec.key.library_state import LibraryStates, describe, read_of, targets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import yaml\nyaml.SafeLoader.add_constructor('!x', f)", ["yaml.SafeLoader.add_constructor()"]),
        ("import flax.linen as nn\nwith nn.intercept_methods(f): pass", ["flax.linen.intercept_methods()"]),
        ("from string import Template as T\nT.a = 1\ndel T.b", ["string.Template.a", "string.Template.b"]),
        ("import a\na.b.table[1] = 2", ["a.b.table.__setitem__()"]),
        ("import a\ndef f():\n    setattr(a.C, name, 1)", ["a.C.__setattr__()"]),
        ("import a\nhandle = a.register_hook(f)", ["a.register_hook()"]),
        ("import a\nx = a.add(1, 2)\na.show()\nb.set(1)\na = 2", []),
        ("import os\nos.environ['X'] = '1'", []),
        ("this is not Python", []),
    ],
)  # fmt: skip
def test_the_targets_of_a_text(text: str, expected: list[str]) -> None:
    assert list(targets(text.encode())) == expected


class _Settings:
    """An object that keeps its attributes in a place of its own."""

    def __init__(self) -> None:
        vars(self)["held"] = {}

    def __setattr__(self, name: str, value: object) -> None:
        self.held[name] = value


class _Local(threading.local):
    def __init__(self) -> None:
        self.stack: list[int] = []


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("a_library")
    module.settings, module.local, module.table, module.C = _Settings(), _Local(), {}, type("C", (), {"x": 1})
    module.push = lambda: None
    module.push.__module__ = "a_library"
    monkeypatch.setitem(sys.modules, "a_library", module)
    return module


@pytest.mark.parametrize(
    ("target", "change"),
    [
        ("a_library.settings.rate", lambda library: setattr(library.settings, "rate", 2)),
        ("a_library.push()", lambda library: library.local.stack.append(1)),
        ("a_library.table.__setitem__()", lambda library: library.table.update(a=1)),
        ("a_library.C.x", lambda library: setattr(library.C, "x", 2)),
        ("a_library.C.x", lambda library: delattr(library.C, "x")),
        ("a_library.C.register()", lambda library: setattr(library.C, "known", [1])),
        ("a_library.flag", lambda library: setattr(library, "flag", 2)),
    ],
)
def test_a_target_that_was_set_has_another_state(library: Any, target: str, change: Any) -> None:
    forms = Forms(lambda _path: False)
    before = describe(target, forms)
    assert describe(target, forms) == before
    change(library)
    assert describe(target, forms) != before


def test_only_libraries_that_a_run_has_used_count(library: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    program = ModuleType("a_program")
    program.__file__ = str(tmp_path / "a_program.py")
    (tmp_path / "a_program.py").write_text(
        "import a_library, never_imported\na_library.flag = never_imported.flag = 1\n"
    )
    monkeypatch.setitem(sys.modules, "a_program", program)
    library.__file__ = "/usr/lib/a_library.py"
    states, forms = LibraryStates(None), Forms(lambda path: path.startswith(str(tmp_path)))
    before = states.now(forms)
    assert list(before) == ["a_library.flag"]
    library.flag = 1
    after = states.now(forms)
    assert read_of({"a_library"}, before) != read_of({"a_library"}, after)
    assert read_of({"json"}, before) == read_of({"json"}, after)
