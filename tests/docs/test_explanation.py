"""The pages in docs/explanation: their commands run, what scripts make is current, and names in them exist."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

from tests.pages import DOCS, said, scripts

ROOT = DOCS.parent
EXPLANATION = DOCS / "explanation"


def test_the_commands_about_keys(tmp_path: Path) -> None:
    scripts("explanation/keys.md", tmp_path)
    first, again, other, log = said("explanation/keys.md", tmp_path)
    assert (first, again, other) == ("6\n", "6\n", "8\n")
    assert [line.split()[1] for line in log.splitlines()] == ["first-run", "hit", "option-changed"]


def test_the_commands_about_trust(tmp_path: Path) -> None:
    doctor, verify, stats = said("explanation/trust.md", tmp_path)
    assert doctor
    assert verify
    assert stats


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
