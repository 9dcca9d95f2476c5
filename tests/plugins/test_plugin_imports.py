"""What plugins import of cachec, seen in their source: also what import-linter leaves out (``if TYPE_CHECKING:``)."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALL = sorted((ROOT / "plugins").rglob("*.py"))


def given() -> set[str]:
    """The allow-list of the contract in pyproject.toml."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = [each for each in linter["contracts"] if each["name"] == "a plugin sees only what plugins are given"]
    assert contract["forbidden_modules"] == ["cachec"]
    assert set(contract["source_modules"]) == {path.name for path in (ROOT / "plugins").glob("cachec_*")}
    return {each.removeprefix("** -> ") for each in contract["ignore_imports"]}


def imported(source: str) -> Iterator[str]:
    """The modules of cachec that are imported anywhere in a file. ``from a import b`` is ``a.b`` where that is one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            inner = [f"{node.module}.{each.name}" for each in node.names]
            names = [name if is_module(name) else str(node.module) for name in inner]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] == "cachec")


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_plugins_import_what_they_are_given_and_nothing_else() -> None:
    allowed = given()
    strange = {f"{path.relative_to(ROOT)}: {name}" for path in ALL for name in imported(path.read_text())
               if name not in allowed}  # fmt: skip
    assert len(ALL) > 50
    assert not strange


def test_nothing_is_given_that_no_plugin_takes() -> None:
    taken = {name for path in ALL for name in imported(path.read_text())}
    assert given() == taken


def test_asking_for_any_plugin_imports_no_compiler_and_nothing_slow() -> None:
    """All of them are imported together, by every process that works with what one of them may know."""
    slow = (
        "subprocess",
        "tempfile",
        "shutil",
        "ctypes",
        "json",
        "numpy",
        "jax",
        "jaxlib",
        "iree",
        "torch",
        "onnx",
        "onnxruntime",
        "tvm",
    )
    code = (
        "import sys; from cachec.programs.registry import installed_plugins;"
        "names = [each.name for each in installed_plugins().all()];"
        f"print(len(names) >= 7, [m for m in {slow} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True []"


def test_imports_are_seen_wherever_they_stand() -> None:
    source = (
        "import cachec.base.fsio\nfrom cachec.base import hashing\nfrom cachec.errors import LinkError\n"
        "def f():\n  if TYPE_CHECKING:\n    from cachec import key\nimport cachec_jax\nfrom . import cachec\n"
    )
    assert set(imported(source)) == {"cachec.base.fsio", "cachec.base.hashing", "cachec.errors", "cachec.key"}
