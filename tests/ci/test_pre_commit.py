"""The hooks, run by the real pre-commit on a scratch repository."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT

HOOKS = ROOT / ".pre-commit-hooks.yaml"


def pre_commit() -> list[str]:
    """How to run it. In CI it has to be there."""
    if importlib.util.find_spec("pre_commit") is not None:
        return [sys.executable, "-m", "pre_commit"]
    found = shutil.which("pre-commit")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("pre-commit is not installed; CI needs it")
        pytest.skip("pre-commit is not installed")
    return [found]


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(project: Any, on_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project whose hooks come from a repository that offers ours."""
    for name in list(os.environ):
        if name.startswith(("GIT_", "PRE_COMMIT")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "pre-commit"))
    offering = tmp_path / "offering"
    offering.mkdir()
    shutil.copy(HOOKS, offering)
    git(offering, "init", "-q")
    git(offering, "add", "-A")
    git(offering, "commit", "-qm", "hooks")
    revision = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=offering, capture_output=True, text=True, check=True
    ).stdout.strip()
    project.write(
        ".pre-commit-config.yaml",
        f"""
        repos:
          - repo: {offering}
            rev: {revision}
            hooks:
              - id: cachec-check
              - id: cachec-warm
                stages: [pre-push]
        """,
    )
    project.targets(
        """
        [warm.targets.doubled]
        call = "stages:doubled"
        matrix = { n = [1] }
        files = ["stages.py"]
        [warm.targets.other]
        call = "stages:fails"
        files = ["other/**"]
        """
    )
    project.write(".gitignore", "runs.txt\n__pycache__\n")
    git(project.folder, "init", "-q")
    git(project.folder, "add", "-A")
    git(project.folder, "commit", "-qm", "first")
    return project


@pytest.mark.long
def test_the_real_pre_commit(repository: Any) -> None:
    command = pre_commit()

    def run(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [*command, "run", *words], cwd=repository.folder, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def edit(old: str, new: str) -> None:
        path = repository.folder / "stages.py"
        path.write_text(path.read_text().replace(old, new))
        git(repository.folder, "add", "-A")

    edit("return 2 * n", "return n + n")
    code, output = run()
    assert code == 1, output
    assert re.search(r"cachec check\.+Failed", output)
    assert "would-miss doubled[n=1]" in output
    assert "other" not in output
    assert repository.runs == []
    code, output = run("--hook-stage", "pre-push")
    assert code == 0, output
    assert "cachec check" not in output  # it would refuse what is compiled here
    assert repository.runs == ["double 1"]
    code, output = run()
    assert code == 0, output
    assert re.search(r"cachec check\.+Passed", output)
    git(repository.folder, "commit", "-qm", "second")
    repository.write("unrelated.txt", "x")
    git(repository.folder, "add", "-A")
    code, output = run("cachec-check")
    assert code == 0, output
    repository.write("other/x", "x")
    git(repository.folder, "add", "-A")
    code, output = run("cachec-check")
    assert code == 1
    assert "ValueError: no luck" in output


@pytest.mark.long
def test_the_entries_as_pre_commit_calls_them(repository: Any) -> None:
    """The same without pre-commit: each entry, with changed files behind it."""
    entries = re.findall(r"entry: (.*)", HOOKS.read_text())
    assert re.findall(r"- id: (.*)", HOOKS.read_text()) == ["cachec-check", "cachec-warm"]
    check, warm = ([*entry.split()] for entry in entries)

    def run(words: list[str], *files: str) -> int:
        return subprocess.run([*words, *files], cwd=repository.folder, capture_output=True, check=False).returncode

    assert run(check, "stages.py") == 1
    assert run(check, "unrelated.txt") == 0
    assert run(warm, "unrelated.txt") == 0
    assert repository.runs == []
    assert run(warm, "stages.py") == 0
    assert repository.runs == ["double 1"]
    assert run(check, "stages.py") == 0
    assert run(check, "stages.py", "other/new") == 2
