"""``cachec check`` and ``cachec why`` of a command line: without running it, with the part that differs and the fix."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cachec.cli import main
from tests.launcher.conftest import Launcher, write

_LINE = ("fakecc", "a.txt", "-o", "a.out")


@pytest.fixture(autouse=True)
def _known(launcher: Launcher) -> None:
    write("a.txt", "x")
    launcher.run(*_LINE)


def _cli(*args: str) -> Result:
    result = CliRunner().invoke(main, args)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def _json(*args: str) -> Any:
    return json.loads(_cli(*args).stdout)


def test_a_hit(launcher: Launcher) -> None:
    result = _cli("check", "--", *_LINE)
    assert (result.exit_code, result.output) == (0, "hit\n")
    result = _cli("why", "--", *_LINE)
    assert (result.exit_code, result.output) == (0, "hit (exec:fakecc)\n")


def test_nothing_is_run_or_counted(launcher: Launcher) -> None:
    os.unlink("a.out")
    before = launcher.reasons()
    for line in (_LINE, (*_LINE, "-O2"), ("unknown-tool",), ("sh", "-c", "touch ran")):
        _cli("check", "--", *line)
        _cli("why", "--", *line)
    assert launcher.reasons() == before
    assert launcher.compiled() == 1
    assert not Path("a.out").exists()
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("line", "outcome", "words"),
    [
        ((*_LINE, "-O2"), "miss:option-changed", "-O2 added"),
        (("sh", "-c", "x"), "miss:new-input", "there was no run with x yet"),
    ],
)
def test_a_miss(line: tuple[str, ...], outcome: str, words: str) -> None:
    result = _cli("check", "--", *line)
    assert result.exit_code == 1
    assert result.output.startswith(outcome + ": ")
    assert words in result.output
    assert _cli("why", "--", *line).exit_code == 1
    assert words in _cli("why", "--", *line).output
    assert _json("check", "--json", "--", *line)["outcome"] == outcome


def test_a_command_that_is_passed_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEC_MODE", "off")
    assert "fix: unset CACHEC_MODE" in _cli("why", "--", *_LINE).output


def test_why_names_each_part_and_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_OPT", "3")
    write("a.txt", "y")
    found = _json("why", "--json", "--", *_LINE, "-new=1")
    assert found["outcome"] == "miss:environment-changed"
    assert [each["part"] for each in found["differences"]] == ["env/FAKE_OPT", "arg/-new", "file/a.txt"]
    assert found["other"]["chosen"] == "nearest"
    assert found["fix"] == "set FAKE_OPT as it was, or say --ignore-env FAKE_OPT"
    text = _cli("why", "--", *_LINE, "-new=1").output
    assert "environment FAKE_OPT: not set -> '3'" in text
    assert "fix: set FAKE_OPT" in text


def test_an_entry_that_is_gone_differs_in_nothing() -> None:
    key = _json("check", "--json", "--", *_LINE)["key"]
    assert _cli("invalidate", "--yes", key).exit_code == 0
    result = _cli("why", "--", *_LINE)
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "miss:entry-gone (exec:fakecc): the entry was invalidated or evicted",
        f"against {key[:12]}: nothing differs",
    ]


def test_a_difference_in_folders_alone(launcher: Launcher) -> None:
    write("one/x", "x")
    write("two/x", "x")
    launcher.run(*_LINE, f"-file={os.path.abspath('one/x')}")
    found = _json("why", "--json", "--", *_LINE, f"-file={os.path.abspath('two/x')}")
    assert found["fix"].startswith("only a folder differs: set base_dir")


def test_a_rebuilt_tool_is_named(launcher: Launcher, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "fakecc"
    tool.write_text(tool.read_text() + "\n")
    found = _json("why", "--json", "--", *_LINE)
    assert found["outcome"] == "miss:dependency-changed"
    assert "bin/fakecc has other content" in found["detail"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("check",), "no command"),
        (("check", "fakecc"), "no command: put it behind '--': cachec exec -- fakecc"),
        (("check", "--nope", "--", "x"), "'--nope' is no option"),
        (("why", "--input", "nothere", "--", "sh"), "--input nothere: there is no such file"),
        (("check", "--", "no-such-tool"), "'no-such-tool' is not an executable in PATH"),
    ],
)
def test_wrong_use(args: tuple[str, ...], words: str) -> None:
    result = _cli(*args)
    assert result.exit_code == 2
    assert words in result.output


def test_exec_through_click(launcher: Launcher, tmp_path: Path) -> None:
    result = _cli("--dir", str(tmp_path / "other"), "exec", "--", *_LINE)
    assert result.exit_code == 0
    assert (tmp_path / "other" / "log").is_dir()
    assert launcher.compiled() == 2


@pytest.mark.parametrize("command", ["exec", "check"])
def test_help(command: str) -> None:
    result = _cli(command, "--help")
    assert result.exit_code == 0
    assert "--weights PATH[=content|opened|name]" in result.output


def test_what_is_kept_of_a_command_is_no_reproducer() -> None:
    """It says what was run; ``repro run`` would have to have its files."""
    key = _json("check", "--json", "--", *_LINE)["key"]
    made = _cli("repro", key, "-o", "ran.zip")
    assert (made.exit_code, "what was run, and no reproducer" in made.output) == (0, True), made.output
    assert "run it where they are: cachec verify --recompute" in made.output
    assert "fakecc a.txt -o a.out" in _cli("repro", "show", "ran.zip").output
    with zipfile.ZipFile("ran.zip") as archive:
        text = archive.read("README.md").decode()
    assert "`cachec repro run` can't run it" in text
    assert "cachec repro run THIS.zip" not in text
    ran = _cli("repro", "run", "ran.zip")
    assert (ran.exit_code, "run it where they are" in ran.stderr) == (2, True), ran.output
