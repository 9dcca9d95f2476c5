"""``cachec init``: what is found, what is written, and what never is."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from cachec import config
from cachec.cli import main
from cachec.cli.session import write_file

from .conftest import Shell

FOUND = {
    "CMake": "CMakeLists.txt",
    "Ninja": "build.ninja",
    "pre-commit": ".pre-commit-config.yaml",
    "GitHub": ".github/workflows/tests.yaml",
    "pytest": "tests/conftest.py",
}


def touch(name: str, text: str = "") -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)


@pytest.mark.parametrize("name", FOUND)
def test_what_is_there_is_found(shell: Shell, name: str) -> None:
    assert shell.json("init")["found"] == []
    touch(FOUND[name])
    found = shell.json("init")
    assert (found["found"], found["written"]) == ([name], False)
    assert f"+# --- {name}\n" in found["diff"]
    assert not Path("cachec.toml").exists()
    assert shell.json("init", "--yes")["written"]
    assert f"# --- {name}\n" in Path("cachec.toml").read_text()


@pytest.mark.parametrize(("text", "found"), [("[tool.pytest.ini_options]\n", ["pytest"]), ("[tool.ruff]\n", [])])
def test_pytest_is_found_by_its_settings(shell: Shell, text: str, found: list[str]) -> None:
    touch("pyproject.toml", text)
    assert shell.json("init")["found"] == found


def test_nothing_changes_until_a_mark_is_taken_out(shell: Shell) -> None:
    for name in FOUND.values():
        touch(name)
    before = config.load()
    result = shell.run("init", "--yes")
    assert result.exit_code == 0
    text = Path("cachec.toml").read_text()
    assert tomllib.loads(text) == {}
    assert config.load() == before
    assert max(map(len, text.splitlines())) <= 110
    assert set(re.findall(r"^# --- (.*)$", text, re.MULTILINE)) == {*FOUND, "warm"}
    whole = re.sub(r"^# (\[.*\]|\w+ = .*)$", r"\1", text, flags=re.MULTILINE)
    document = tomllib.loads(whole)
    assert document["warm"]["targets"]["NAME"]["call"] == "module:function"
    assert document["base_dir"] == "."
    Path("cachec.toml").write_text(whole)
    assert config.load().mode.value == "on"


def test_what_is_said_already_stays_and_is_not_said_again(shell: Shell) -> None:
    touch("cachec.toml", 'mode = "off"')
    Path("cachec.toml").chmod(0o640)
    touch("CMakeLists.txt")
    first = shell.run("init", "--yes")
    assert "+# --- CMake" in first.output
    text = Path("cachec.toml").read_text()
    assert text.startswith('mode = "off"\n\n# --- CMake\n')
    assert Path("cachec.toml").stat().st_mode & 0o777 == 0o640
    again = shell.run("init", "--yes")
    assert "says all of it already" in again.output
    touch("build.ninja")
    shell.run("init", "--yes")
    now = Path("cachec.toml").read_text()
    assert re.fullmatch(r"\n# --- Ninja\n(#.*\n)+", now.removeprefix(text))


def test_where_nobody_can_be_asked_nothing_is_written(shell: Shell) -> None:
    result = shell.run("init")
    assert result.exit_code == 0
    assert "+# Settings of cachec" in result.stdout
    assert "nothing is written; --yes writes it" in result.stderr
    assert not Path("cachec.toml").exists()


@pytest.mark.parametrize(("answer", "is_written"), [("y", True), ("", False)])
def test_the_question(shell: Shell, answer: str, is_written: bool) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    line = [sys.executable, "-m", "cachec", "--dir", str(shell.dir), "init"]
    done = subprocess.run(line, stdin=theirs, capture_output=True, text=True, check=True)
    os.close(ours)
    os.close(theirs)
    assert "write cachec.toml? [y/N]" in done.stderr
    assert Path("cachec.toml").exists() == is_written


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("pyproject.toml", "[tool.cachec]\nmode = 'off'\n"),
        ("pyproject.toml", "[tool.cachec.warm]\njobs = 2\n"),
        ("../pyproject.toml", "[tool.cachec]\nmode = 'off'\n"),
        ("../cachec.toml", "[warm]\njobs = 2\n"),
    ],
)
def test_what_holds_is_not_hidden(shell: Shell, monkeypatch: pytest.MonkeyPatch, place: str, text: str) -> None:
    Path("inner").mkdir()
    monkeypatch.chdir("inner")
    touch(place, text)
    result = shell.run("init", "--yes")
    assert result.exit_code == 2
    assert "would hide what" in result.stderr
    assert not Path("cachec.toml").exists()


def test_the_settings_of_the_user_are_no_hindrance(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path.cwd()))
    touch("cachec/cachec.toml", 'log = "off"\n')
    Path("cachec/inner").mkdir()
    monkeypatch.chdir("cachec/inner")
    assert shell.json("init", "--yes")["written"]


def test_a_link_stays_a_link(shell: Shell) -> None:
    touch("shared/cachec.toml", 'log = "off"\n')
    os.symlink("shared/cachec.toml", "cachec.toml")
    shell.run("init", "--yes")
    assert Path("cachec.toml").is_symlink()
    assert "# --- warm" in Path("shared/cachec.toml").read_text()


def test_a_folder_in_its_place(shell: Shell) -> None:
    Path("cachec.toml").mkdir()
    result = shell.run("init", "--yes")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("umask", "before", "mode"), [(0o077, None, 0o600), (0o022, 0o600, 0o600), (0, 0o444, 0o444)])
def test_a_file_that_a_command_writes_has_the_permissions_of_the_umask_or_its_own(
    tmp_path: Path, umask: int, before: int | None, mode: int
) -> None:
    target = tmp_path / "out"
    if before is not None:
        target.touch()
        target.chmod(before)
    old = os.umask(umask)
    try:
        write_file(str(target), b"data")
    finally:
        os.umask(old)
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"data", mode)


@pytest.mark.parametrize("args", [["repro", "abc", "--weights"], ["bundle", "create", "--sign"], ["repro", "weights"]])
def test_no_command_writes_over_its_input(tmp_path: Path, args: list[str]) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"precious")
    (tmp_path / "link").symlink_to(".")
    store = ["--dir", str(tmp_path / "store")]
    result = CliRunner().invoke(main, [*store, *args, str(path), "-o", str(tmp_path / "link" / path.name)])
    assert result.exit_code == 2
    assert "is given twice" in str(result.stderr)
    assert path.read_bytes() == b"precious"
