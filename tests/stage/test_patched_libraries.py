"""A value that a program sets in a module of a library counts, however a stage reaches that module."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

MODULES = ("builtins", "sys", "colorsys", "xml.dom", "msgspec")
#: How code takes ``strb`` of the module ``$M``.
WAYS = {
    "attribute": "import $M\n    return $M.strb",
    "getattr": "import $M\n    return getattr($M, 'strb', 0)",
    "other name": "import $M as m\n    return m.strb",
    "from": "from $M import strb as found\n    return found",
    "helper": "import $M\n    return take($M)",
    "function of the helper": "return local()",
}
SCRIPT = """
import sys, os, cachec, $M
cache = cachec.Cache(os.environ["STORE"], log="off")
def take(m):
    "Say the path of modules, or some other text of the version."
    return getattr(m, "strb", 0)
def local():
    import $M as m
    return m.strb
value = eval(sys.argv[1])
if value is not None: $M.strb = value
@cache.stage
def stage(n):
    $W
print(*stage.call(1)[0:1], stage.call(1)[1].reason.value)
"""


def _said(folder: Path, text: str, value: str) -> list[str]:
    (folder / "main.py").write_text(text)
    environ = {**os.environ, "STORE": str(folder / "store")}
    command = [sys.executable, "main.py", value]
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


@pytest.mark.parametrize(("module", "way"), [*product(MODULES[:2], WAYS), *((each, "getattr") for each in MODULES[2:])])
def test_another_value_in_a_library_is_another_input(module: str, way: str, tmp_path: Path) -> None:
    text = SCRIPT.replace("$W", WAYS[way]).replace("$M", module)
    assert _said(tmp_path, text, "1") == ["1", "hit"]
    assert _said(tmp_path, text, "2") == ["2", "hit"]
    assert _said(tmp_path, text, "1") == ["1", "hit"]
    if way in {"getattr", "helper"}:
        assert _said(tmp_path, text, "None") == ["0", "hit"]
        assert _said(tmp_path, text, "1") == ["1", "hit"]
        assert _said(tmp_path, text, "None") == ["0", "hit"]


def test_what_the_project_puts_into_a_library_counts(tmp_path: Path) -> None:
    text = SCRIPT.replace("$W", "import colorsys\n    return colorsys.strb()").replace("$M", "colorsys")
    assert _said(tmp_path, text, "lambda: 1") == ["1", "hit"]
    assert _said(tmp_path, text, "lambda: 2") == ["2", "hit"]


#: What a stage asks of the imports of its process, and what a program does before that.
IMPORTS = {
    "in": ("'colorsys' in sys.modules", "import colorsys"),
    "get": ("sys.modules.get('colorsys') is not None", "import colorsys"),
    "path": ("[each for each in sys.path if each.endswith('extra')]", "sys.path.append('/extra')"),
    "path kept": ("[each for each in PATH if each.endswith('extra')]", "sys.path.append('/extra')"),
    "path by an import": ("[each for each in path() if each.endswith('extra')]", "sys.path.append('/extra')"),
}


@pytest.mark.parametrize("name", IMPORTS)
def test_what_is_imported_and_where_from_counts_for_who_asks(name: str, tmp_path: Path) -> None:
    asks, does = IMPORTS[name]
    text = f"""
import os, sys, cachec
from sys import path as PATH
cache = cachec.Cache(os.environ["STORE"], log="off")
def path():
    from sys import path
    return path
@cache.stage
def stage(n): return {asks}
@cache.stage
def other(n): return os.path.join("a", "b")
if sys.argv[1] == "1": {does}
print(str(stage(1)).replace(" ", ""), other.call(1)[1].reason.value)
"""
    without, other = _said(tmp_path, text, "0")
    assert other == "miss:first-run"
    found, other = _said(tmp_path, text, "1")
    assert (found != without, other) == (True, "hit")
    assert _said(tmp_path, text, "0") == [without, "hit"]
