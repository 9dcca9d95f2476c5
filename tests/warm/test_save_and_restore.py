"""``cachec warm --save`` and ``--restore``: what a job used comes back in the next one, as a bundle."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from .conftest import Project


@pytest.mark.long
def test_on_the_command_line(project: Project) -> None:
    project.targets('[warm.targets.doubled]\ncall = "stages:doubled"\nmatrix = { n = [1, 2] }\n')
    first = project.command("warm", "--restore", "warm.cachec", "--save", "warm.cachec")
    assert first.returncode == 0
    assert "cachec: no bundle warm.cachec yet" in first.stderr
    assert "cachec: 2 entries saved to warm.cachec, " in first.stderr
    shutil.rmtree(project.store)
    again = project.command("warm", "--restore", "warm.cachec", "--save", "warm.cachec", "--save-limit", "1MiB")
    assert again.stdout.startswith("2 hit in ")
    assert "cachec: 2 entries restored from warm.cachec" in again.stderr
    assert "cachec: 2 entries saved" in again.stderr, "what hit was used"
    assert "1 entry saved" in project.command("warm", "doubled[n=1]", "--save", "warm.cachec").stderr
    shutil.rmtree(project.store)
    with (project.folder / "warm.cachec").open("r+b") as file:
        file.truncate(700)
    bad = project.command("warm", "--restore", "warm.cachec")
    assert bad.returncode == 0, "a cache that fails costs time, no more"
    assert "nothing is restored: warm.cachec is refused: it " in bad.stderr
    assert bad.stdout.startswith("2 compiled in ")
    wrong = project.command("warm", "--save", "warm.cachec", "--save-limit", "much")
    assert (wrong.returncode, "--save-limit 'much'" in wrong.stderr) == (2, True)


def test_what_another_program_used_is_saved_without_targets(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    record = project.folder / "stats.jsonl"
    monkeypatch.setenv("CACHEC_STATS_FILE", str(record))
    subprocess.run([sys.executable, "-c", "import stages; stages.double(3)"], cwd=project.folder, check=True)
    done = project.command("warm", "--save", "warm.cachec", "--used", os.fspath(record))
    assert (done.returncode, "1 entry saved" in done.stderr) == (0, True), done.stderr
