"""The pages in docs/explanation: their commands run, what scripts make is current, and names in them exist."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[2]
EXPLANATION = ROOT / "docs" / "explanation"
PROGRAMS = {"python": [sys.executable], "cachec": [sys.executable, "-m", "cachec"]}


def run_console(page: str, folder: Path) -> list[str]:
    """Return what each command of the first console of a page prints, run in a folder with a store of its own."""
    block = re.findall(r"```console\n(.*?)```", (EXPLANATION / page).read_text(), re.DOTALL)[0]
    environ = {**os.environ, "CACHEC_DIR": str(folder / "store")}
    outputs = []
    for command in re.findall(r"^\$ (.*)", block, re.MULTILINE):
        program, *args = command.partition("#")[0].split()
        line = [*PROGRAMS[program], *args]
        done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    return outputs


def test_the_commands_about_keys(tmp_path: Path) -> None:
    script = re.search(r"```python\n# scale.py\n(.*?)```", (EXPLANATION / "keys.md").read_text(), re.DOTALL)
    assert script is not None
    (tmp_path / "scale.py").write_text(script[1])
    first, again, other, log = run_console("keys.md", tmp_path)
    assert (first, again, other) == ("6\n", "6\n", "8\n")
    assert [line.split()[1] for line in log.splitlines()] == ["first-run", "hit", "option-changed"]


def test_the_commands_about_trust(tmp_path: Path) -> None:
    assert all(run_console("trust.md", tmp_path))


@pytest.mark.parametrize("script", ["module_index", "diagram"])
def test_what_a_script_makes_is_current(script: str) -> None:
    line = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), "--check"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_index_has_the_first_sentence_of_each_module(tmp_path: Path) -> None:
    summary = runpy.run_path(str(ROOT / "scripts" / "module_index.py"))["summary"]
    module = tmp_path / "module.py"
    for text, wanted in (
        ('"""Reads ``a.b`` and\nc. Then more."""', "Reads `a.b` and c."),
        ('"""No full stop\n\nMore."""', "No full stop"),
        ("", ""),
    ):
        module.write_text(text)
        assert summary(module) == wanted


def test_names_of_modules_exist() -> None:
    """``stage.engine``, ``model.Read``: a module of cachec, or what one has."""
    packages = {path.stem for path in (ROOT / "cachec").iterdir()}
    names = re.findall(r"`([a-z_]+(?:\.\w+)+)`", (EXPLANATION / "architecture.md").read_text())
    assert "model.Read" in names
    for name in names:
        if name.partition(".")[0] in packages:
            assert resolve_name(f"cachec.{name}"), name
