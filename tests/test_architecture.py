"""The house: no module reaches itself by imports, it stays small, and docs/architecture.md names what is there.

Imports in functions and for type checkers count.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def modules() -> dict[str, Path]:
    """The file of every module, by its dotted name."""
    found = {}
    for base in (ROOT / "cachec", *(ROOT / "plugins").glob("cachec_*")):
        for file in base.rglob("*.py"):
            parts = (base.name, *file.relative_to(base).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(name: str, file: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules among ``known`` that a module names in any import statement."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            targets = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            while target and target not in known:
                target = target.rpartition(".")[0]
            if target and target != name:
                yield target


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module, sorted (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in edges[name]:
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            at = stack.index(name)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                found.append(sorted(component))

    for name in sorted(edges):
        if name not in index:
            visit(name)
    return sorted(found)


@pytest.fixture(scope="module")
def edges() -> dict[str, set[str]]:
    known = modules()
    assert {"cachec", "cachec.weights.sets", "cachec_mlir"} <= set(known)
    return {name: set(imported(name, file, known)) for name, file in known.items()}


@pytest.mark.long
def test_no_module_reaches_itself(edges: dict[str, set[str]]) -> None:
    found = circles(edges)
    assert not found, "\n".join(" <-> ".join(circle) for circle in found)


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"a", "d"}, "d": {"c"}}) == [["a", "b"], ["c", "d"]]


def test_every_kind_of_import_counts(tmp_path: Path) -> None:
    known = dict.fromkeys(("p", "p.a", "p.b", "p.c", "p.d"), tmp_path)
    file = tmp_path / "a.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nimport p.b\nif TYPE_CHECKING:\n    from p import c\n"
        "def f():\n    from .d import thing\n"
    )
    assert set(imported("p.a", file, known)) == {"p.b", "p.c", "p.d"}


# --- its size, and its description

CACHEC = ROOT / "cachec"
DOCUMENT = (ROOT / "docs" / "architecture.md").read_text()


def contract(name: str) -> dict[str, Any]:
    """A contract of import-linter, by its name."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (found,) = [each for each in linter["contracts"] if each["name"] == name]
    return dict(found)


def section(title: str) -> str:
    """What stands below a heading of the document."""
    _, _, rest = DOCUMENT.partition(f"\n## {title}\n")
    assert rest, f"docs/architecture.md has no section {title!r}"
    return rest.partition("\n## ")[0]


def rooms() -> dict[str, set[str]]:
    """The modules of every package of cachec, by its folder: ``key/code/`` -> {``live``, ...}; ``""`` is the top."""
    found: dict[str, set[str]] = {}
    for file in CACHEC.rglob("*.py"):
        room = file.parent.relative_to(CACHEC).as_posix() + "/"
        found.setdefault("" if room == "./" else room, set()).add(file.stem)
    return {room: names - {"__init__"} for room, names in found.items()}


def described() -> dict[str, str]:
    """What the document says of every room, by its folder."""
    items = re.split(r"^- ", section("Rooms"), flags=re.MULTILINE)[1:]
    found: dict[str, str] = {"": ""}
    for item in items:
        room = re.match(r"`([a-z_/]+/)`: ", item)
        if room is None:
            found[""] += item
        else:
            assert room[1] not in found, f"{room[1]} is described twice"
            found[room[1]] = item[room.end() :].partition("\n\n")[0]
    return found


def test_the_house_stays_small() -> None:
    at_the_top = [path for path in CACHEC.glob("*.py") if path.name != "__init__.py"]
    assert len(at_the_top) <= 12
    assert len(rooms()) - 1 <= 29
    assert len(contract("imports go down only")["layers"]) <= 16


def test_the_floors_are_those_of_the_contract() -> None:
    drawn = [set(re.findall(r"\w+", layer)) for layer in contract("imports go down only")["layers"]]
    rows = re.findall(r"^\| (\d+) \| ([^|]*) \|", section("Floors"), re.MULTILINE)
    assert [set(re.findall(r"`(\w+)`", names)) for _, names in rows] == drawn
    assert [int(number) for number, _ in rows] == list(range(len(drawn), 0, -1))


def test_every_room_is_described() -> None:
    assert described().keys() == rooms().keys()


@pytest.mark.parametrize("room", sorted(rooms()))
def test_every_module_is_named_and_every_name_is_a_module(room: str) -> None:
    """A room whose description ends with "and others" need not name all."""
    text, modules = described().get(room, ""), rooms()[room]
    names = set(re.findall(r"`([a-z_*]+)`", text))
    assert {name for name in names if not any(fnmatchcase(module, name) for module in modules)} == set()
    missing = {module for module in modules if not any(fnmatchcase(module, name) for name in names)}
    assert not missing or text.rstrip().endswith("and others."), f"{room or 'cachec/'}: {sorted(missing)}"


def test_plugins_are_given_what_the_document_says() -> None:
    ignored = contract("a plugin sees only what plugins are given")["ignore_imports"]
    _, _, text = section("Rooms").partition("What a plugin may\nimport")
    assert set(re.findall(r"`(cachec\.[a-z_.]+)`", text)) == {each.removeprefix("** -> ") for each in ignored}


def test_names_in_the_rest_of_the_document_exist() -> None:
    """``stage.look``, ``model.Read``: a module of cachec, or what one has."""
    names = re.findall(r"`([a-z_]+(?:\.\w+)+)`", DOCUMENT)
    assert "model.Read" in names
    for name in names:
        if name.partition(".")[0] in {path.stem for path in CACHEC.iterdir()}:
            assert resolve_name(f"cachec.{name}"), name
