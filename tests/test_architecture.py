"""The packages of cachec: no module reaches itself by imports, and they stay few.

Imports in functions and for type checkers count.
"""

from __future__ import annotations

import ast
import builtins
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
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


# --- size

CACHEC = ROOT / "cachec"


def contract(name: str) -> dict[str, Any]:
    """A contract of import-linter, by its name."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (found,) = [each for each in linter["contracts"] if each["name"] == name]
    return dict(found)


def test_packages_stay_few() -> None:
    packages = {file.parent for file in CACHEC.rglob("*.py")} - {CACHEC}
    assert len([path for path in CACHEC.glob("*.py") if path.name != "__init__.py"]) <= 12
    assert len(packages) <= 29
    assert len(contract("imports go down only")["layers"]) <= 16


#: Named as modules are, and none of ours: of Python, and files.
_OTHERS = {"codecs.register", "base.py", "weights.safetensors"}


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_what_docstrings_say_is_raised_exists() -> None:
    """An exception that is renamed is renamed in every docstring, too."""
    trees = {name: ast.parse(file.read_text()) for name, file in modules().items()}
    classes = {node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    unknown = []
    for module, tree in trees.items():
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for text in _docstrings(tree):
            for said in re.findall(r"\bRaises? ([A-Z]\w+(?:(?:,| or| and)+ [A-Z]\w+)*)", text):
                names = {name for name in re.findall(r"\w+", said) if name[0].isupper() and not name.isupper()}
                unknown += [(module, name) for name in names - classes - used - {*dir(builtins)}]
    assert not unknown


def test_modules_that_docstrings_and_comments_name_exist() -> None:
    texts = {name.removeprefix("cachec."): file.read_text() for name, file in modules().items()}
    packages = {name.partition(".")[0] for name in texts if "." in name}
    unknown = []
    for where, text in texts.items():
        for said in re.findall(r"``([a-z_]+(?:\.\w+)+)(?:\(\))?``", text):
            module = said
            while module and module not in texts:
                module = module.rpartition(".")[0]
            if said.partition(".")[0] in packages and said not in _OTHERS:
                name = said.removeprefix(module).strip(".").partition(".")[0]
                unknown += [] if re.search(rf"\b{name}\b", texts[module]) else [(where, said)]
    assert not unknown
