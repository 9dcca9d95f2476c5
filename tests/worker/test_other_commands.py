"""``cachec warm``, ``verify --recompute`` and ``repro run`` with isolated stages, and programs that call these."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_STAGES = """
import os, cachec
cache = cachec.Cache(log="off")
@cache.stage(isolated=True)
def lower(n: int) -> bytes:
    with open("data") as file:
        return file.read().encode() * n
"""

_PROGRAM = "import stages\nvalue, outcome = stages.lower.call(2)\nprint(value, outcome.reason.value)\n"

_SETTINGS = 'dir = "store"\n[warm.targets.lower]\ncall = "stages:lower"\narguments = {n = 2}\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    for name, text in {
        "stages.py": _STAGES, "main.py": _PROGRAM, "cachec.toml": _SETTINGS, "data": "x"
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    return tmp_path


def _python(project: Path, *words: str) -> str:
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environ.pop("CACHEC_ISOLATED", None)
    command = [sys.executable, *words]
    ended = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _cachec(project: Path, *words: str) -> str:
    return _python(project, "-m", "cachec", *words)


def test_what_was_warmed_is_a_hit_of_the_program(project: Path) -> None:
    _cachec(project, "warm")
    assert "1 hit" in _cachec(project, "warm", "--check")
    assert _python(project, "main.py", "--an", "argument") == "b'xx' hit\n"
    (project / "data").write_text("y")
    assert _python(project, "main.py").startswith("b'yy' miss:")


def test_what_a_program_stored_is_warm_and_compiled_again(project: Path) -> None:
    assert _python(project, "main.py") == "b'xx' miss:first-run\n"
    assert "1 hit" in _cachec(project, "warm", "--check")
    assert "(stages.lower)" in _cachec(project, "verify", "--recompute", "1", "--path", ".")


def test_a_reproducer_of_an_isolated_stage_runs(project: Path) -> None:
    _cachec(project, "warm")
    key = _cachec(project, "ls").splitlines()[1].split()[0]
    _cachec(project, "repro", key, "-o", "made.zip")
    assert "same" in _cachec(project, "repro", "run", "made.zip", "--path", ".")
