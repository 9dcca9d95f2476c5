"""A class from before a reload, or from an earlier run of its cell, differs from the module's current class."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import cachec
from cachec import Reason
from cachec.key.code.run_reads import RunReads

_TEXT = """
import collections, dataclasses, enum

class E(enum.Enum):
    A = 1

@dataclasses.dataclass
class D:
    x: int = 1

Other = collections.namedtuple("Named", "x")

def make():
    class Inner:
        pass
    return Inner

Made = make()
"""


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "earlier_helper.py").write_text(_TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("earlier_helper")
    del sys.modules["earlier_helper"]


VALUES: dict[str, tuple[Callable[[Any], object], Callable[[Any, Any], object]]] = {
    "member": (lambda m: m.E.A, lambda m, x: x is m.E.A),
    "instance": (lambda m: m.D(), lambda m, x: x == m.D()),
    "class": (lambda m: m.D, lambda m, x: x is m.D),
    "in a list": (lambda m: [m.D()], lambda m, x: x[0] == m.D()),
    "of another name": (lambda m: m.Other(1), lambda m, x: isinstance(x, m.Other)),
    "of a function": (lambda m: m.Made, lambda m, x: x is m.Made),
}


@pytest.mark.parametrize("how", VALUES)
def test_an_argument_of_before_a_reload(tmp_path: Path, helper: ModuleType, how: str) -> None:
    value, compared = VALUES[how]
    cache = cachec.Cache(tmp_path / "store", log="off", mode="on")
    stage = cache.stage(lambda x: compared(helper, x), name="stage")
    given = value(helper)
    assert stage(given) is True
    assert stage.call(given)[1].reason is Reason.HIT
    importlib.reload(helper)
    assert stage(given) is False
    assert stage.call(value(helper))[0] is True
    assert stage.call(value(helper))[1].reason is Reason.HIT


def test_a_global_of_before_a_reload(tmp_path: Path, helper: ModuleType) -> None:
    taken = helper.D
    cache = cachec.Cache(tmp_path / "store", log="off", mode="on")
    stage = cache.stage(lambda x: isinstance(x, taken), name="stage")
    assert stage(helper.D()) is True
    importlib.reload(helper)
    assert stage(helper.D()) is False


def test_a_class_of_a_cell_that_ran_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    notebook: dict[str, Any] = vars(module)

    def run(name: str, text: str) -> None:
        monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
        exec(compile(text, name, "exec"), notebook)

    cell = ("/tmp/ipykernel_7/earlier.py", "class D:\n    pass\n")
    run(*cell)
    run("/tmp/ipykernel_7/stage.py", "def stage(x):\n    return isinstance(x, D)\n")
    given = notebook["D"]()
    cache = cachec.Cache(tmp_path / "store", log="off", mode="on")
    stage = cache.stage(notebook["stage"], name="stage", version="1")
    assert stage(given) is True
    assert stage.call(given)[1].reason is Reason.HIT
    run(*cell)
    assert stage(given) is False


def test_what_only_says_that_it_is_a_module_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries that cffi makes do, and lie among the modules."""

    class Library:
        __slots__ = ()
        __class__ = ModuleType  # type: ignore[assignment]

    monkeypatch.setattr(sys, "modules", {"a_library": Library(), "sys": sys})
    assert RunReads._imported_project(None, ["a_library", "none"]) == []  # type: ignore[arg-type]
