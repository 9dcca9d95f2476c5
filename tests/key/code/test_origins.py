"""Whose an imported module is, by what it says of itself and by the one that it is in."""

from __future__ import annotations

import linecache
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from cachec.key.code.module_sources import Locator, Sources
from cachec.key.code.origins import Origins
from cachec.key.code.part_graph import PartGraph
from cachec.key.code.whole_modules import Units

_NATIVE = f"/site-packages/made/native{EXTENSION_SUFFIXES[0]}"


@pytest.fixture
def origins(monkeypatch: pytest.MonkeyPatch) -> Origins:
    """With modules of a distribution, of an extension and of nobody among those that are imported."""

    def imported(name: str, file: str | None = None, spec: ModuleSpec | None = None) -> None:
        module = ModuleType(name)
        module.__spec__ = spec
        if file is not None:
            module.__file__ = file
        monkeypatch.setitem(sys.modules, name, module)

    imported("made", "/site-packages/made/__init__.py")
    imported("made.native", _NATIVE)
    imported("made.native.inner")
    imported("made.native.inner.most")
    imported("made.native.found", spec=ModuleSpec("made.native.found", None))
    imported("made.beside")
    imported("made.kept", spec=ModuleSpec("made.kept", None, origin="frozen"))
    imported("alone")
    locator = Locator({"/site-packages/made/__init__.py": "made", _NATIVE: "made"}.get)
    sources = Sources()
    return Origins(PartGraph(tolerant=False), locator, sources, Units(sources, locator))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("made", ("distribution", "made")),
        ("made.native", ("distribution", "made")),
        ("made.native.inner", ("distribution", "made")),
        ("made.native.found", ("project", "")),  # by an import, from who knows where
        ("made.native.inner.most", ("project", "")),  # its parent says nothing
        ("made.beside", ("project", "")),  # its parent is Python
        ("made.kept", ("library", "")),
        ("made.native.gone", ("distribution", "made")),  # of one that is not there: as of the one above it
        ("gone", ("project", "")),
        ("alone", ("project", "")),
        ("sys", ("library", "")),
        ("os", ("library", "")),
        (None, ("project", "")),
        (["sys"], ("project", "")),
    ],
)
def test_whose_a_module_is(origins: Origins, name: object, expected: tuple[str, str]) -> None:
    assert origins.of_module(name) == expected


def test_the_cell_that_a_class_was_made_by(origins: Origins, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, text in enumerate(("class C:\n    def f(self): return 1\n", "class D: ...\n")):
        name = f"<ipython-input-{number}-test>"
        monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
        exec(compile(text, name, "exec"), namespace)
    unit = origins.cell_of(namespace["C"], namespace)
    assert unit is not None
    assert set(unit.source.bindings) == {"C"}
    assert origins.cell_of(namespace["D"], namespace) is None  # nothing of it tells
