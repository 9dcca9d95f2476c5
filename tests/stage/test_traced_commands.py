"""Stages that run commands, of which nothing is declared: in another process, checkout, machine and current folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stage.conftest import Program

MAIN = """
import sys, cachec
from pathlib import Path

cache = cachec.Cache()

@cache.stage
def built(name: str) -> str:
    with cachec.scratch() as folder:
        cachec.run(["sh", "build.sh", name, folder / "out"], cwd=Path(__file__).parent)
        return (folder / "out").read_text()

value, outcome = cache.call(built, "a")
print(value.split(), outcome.reason.value, outcome.detail)
"""

#: It looks at ``src/a.h`` or else at ``inc/a.h``, and at the names in ``parts``.
BUILD = """
h=src/$1.h; [ -e $h ] || h=inc/$1.h
cd parts/.. && cat $h > $2; ls parts >> $2; cat link/x >> $2
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "one"
    for path, text in {
        "pyproject.toml": "",
        "main.py": MAIN,
        "build.sh": BUILD,
        "inc/a.h": "1\n",
        "src/b.h": "1\n",
        "parts/p": "",
        "deep/x": "x\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "link").symlink_to("deep")
    return folder


#: What is done in the project, and what the next run says then.
EDITS = {
    "nothing": (None, "", "['1', 'p', 'x'] hit"),
    "a file that it did not look at": ("src/b.h", "2\n", "['1', 'p', 'x'] hit"),
    "a file that it opened": ("inc/a.h", "2\n", "['2', 'p', 'x'] miss:dependency-changed"),
    "the script": ("build.sh", "echo > $2\n", "[] miss:dependency-changed"),
    "a file that was not there": ("src/a.h", "2\n", "['2', 'p', 'x'] miss:dependency-changed"),
    "another name in a folder": ("parts/q", "", "['1', 'p', 'q', 'x'] miss:dependency-changed"),
    "a file behind a link": ("deep/x", "y\n", "['1', 'p', 'y'] miss:dependency-changed"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_in_another_checkout(tmp_path: Path, project: Path, program: Program, edit: str) -> None:
    path, text, expected = EDITS[edit]
    time.sleep(0.05)
    store = str(tmp_path / "store")
    assert program(project / "main.py", CACHEC_DIR=store) == "['1', 'p', 'x'] miss:first-run no entry of this stage yet"
    other = tmp_path / "elsewhere/two"
    shutil.copytree(project, other, symlinks=True)
    if path is not None:
        (other / path).write_text(text)
    time.sleep(0.05)
    said = program(other / "main.py", cwd=tmp_path, CACHEC_DIR=store)
    assert said.startswith(expected)
    if path is not None and "miss" in expected:
        place = {"parts/q": "parts", "deep/x": "link/x"}.get(path, path)
        assert f"project:{place}" in said
    assert " hit" in program(other / "main.py", CACHEC_DIR=store)


def test_another_machine(tmp_path: Path, project: Path, program: Program) -> None:
    time.sleep(0.05)
    (tmp_path / "remote").mkdir()
    remote = {"CACHEC_REMOTE": f"file://{tmp_path}/remote"}
    store = {"CACHEC_DIR": str(tmp_path / "store")}
    assert " miss:first-run" in program(project / "main.py", **store, **remote)
    subprocess.run([sys.executable, "-m", "cachec", "push"], env=os.environ | store | remote, check=True)
    other = tmp_path / "elsewhere/two"
    shutil.copytree(project, other, symlinks=True)
    assert " hit" in program(other / "main.py", CACHEC_DIR=str(tmp_path / "other"), **remote)
    (other / "inc/a.h").write_text("2\n")
    time.sleep(0.05)
    assert program(other / "main.py", CACHEC_DIR=str(tmp_path / "third"), **remote).startswith("['2', 'p', 'x'] miss")


OF_RESULTS = """
import cachec
from pathlib import Path

cache = cachec.Cache()

@cache.stage
def made(text: str) -> cachec.File:
    with cachec.scratch() as folder:
        (folder / "made").write_text(text)
        return cachec.File(folder / "made")

@cache.stage
def shown(file: cachec.File) -> str:
    return cachec.run(["cat", file.path]).stdout.decode()

@cache.stage
def both(name: str) -> str:
    return shown(made(Path(name).read_text()))

value, outcome = cache.call(shown, made("1"))
print(value, outcome.reason.value.partition(":")[0], end=" ")
value, outcome = cache.call(both, "in.txt")
print(value, outcome.reason.value.partition(":")[0])
"""


def test_a_result_that_is_an_argument_may_be_at_another_place(tmp_path: Path, program: Program) -> None:
    folder, remote = tmp_path / "p", {"CACHEC_REMOTE": f"file://{tmp_path}/remote"}
    for path in (folder, tmp_path / "remote"):
        path.mkdir()
    for name, text in {"main.py": OF_RESULTS, "in.txt": "1", "pyproject.toml": ""}.items():
        (folder / name).write_text(text)
    store = {"CACHEC_DIR": str(tmp_path / "store")}
    assert program(folder / "main.py", **store, **remote) == "1 miss 1 miss"
    subprocess.run([sys.executable, "-m", "cachec", "push"], env=os.environ | store | remote, check=True)
    other = {"CACHEC_DIR": str(tmp_path / "other")}
    assert program(folder / "main.py", **other, **remote) == "1 hit 1 hit"
    (folder / "in.txt").write_text("2")
    assert program(folder / "main.py", **other, **remote) == "1 hit 2 miss"
