"""Completion: each shell's script, and what is offered where."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Shell


@pytest.mark.parametrize(
    ("shell_name", "words"),
    [("bash", "complete -o nosort -F"), ("zsh", "#compdef cachec"), ("fish", "complete --no-files --command cachec")],
)
def test_each_shell_has_its_script(shell: Shell, shell_name: str, words: str) -> None:
    result = shell.run("completion", shell_name)
    assert result.exit_code == 0
    assert words in result.stdout
    assert "_CACHEC_COMPLETE" in result.stdout


def test_another_shell_is_refused(shell: Shell) -> None:
    result = shell.run("completion", "tcsh")
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.stderr


def test_the_script_is_bash(shell: Shell, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    (tmp_path / "script").write_text(shell.run("completion", "bash").stdout)
    subprocess.run([bash, "-n", "script"], cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("cachec comp", {"plain,completion"}),
        ("cachec stats --fail", {"plain,--fail-under"}),
        ("cachec completion z", {"plain,zsh"}),
        ("cachec exec --in", {"plain,--input"}),
        ("cachec check --w", {"plain,--weights"}),
        ("cachec exec -- clang a", {"file,a"}),
        ("cachec exec -- clang -", {"file,-"}),
        ("cachec check --input a", {"file,a"}),
        ("cachec nonsense --x", set()),
    ],
)
def test_what_is_offered(line: str, offered: set[str], tmp_path: Path) -> None:
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "_CACHEC_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "cachec"], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == offered
    assert not done.stderr
