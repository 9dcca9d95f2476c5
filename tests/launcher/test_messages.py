"""What a user is told of a command: what is new, what changed, and the way out."""

from __future__ import annotations

import os
import sys

import pytest

from tests.launcher.conftest import Launcher, write
from tests.needs import need


def _miss(launcher: Launcher, *line: object) -> tuple[str, str]:
    launcher.run(*line)
    return launcher.last().reason.value, launcher.last().detail


def test_an_option_more_is_told_by_its_name(launcher: Launcher) -> None:
    write("a.txt", "x\n")
    _miss(launcher, "cp", "a.txt", "b.txt")
    reason, detail = _miss(launcher, "cp", "-f", "--preserve=mode", "a.txt", "b.txt")
    assert reason == "miss:option-changed"
    assert detail.startswith("-f added")


@pytest.mark.parametrize("program", ["sh", sys.executable])
def test_another_script_is_new_and_an_edited_one_is_compared(launcher: Launcher, program: str) -> None:
    for name in ("one", "two"):
        write(f"{name}.src", f": {name}\n" if program == "sh" else f"{name} = 1\n")
    _miss(launcher, program, "one.src")
    reason, detail = _miss(launcher, program, "two.src", "x")
    assert (reason, detail) == ("miss:new-input", "there was no run with two.src yet")
    reason, detail = _miss(launcher, program, "two.src", "y")
    assert (reason, detail) == ("miss:option-changed", "argument 2: x -> y")


def test_another_text_of_a_script_is_new(launcher: Launcher) -> None:
    texts = [f"echo {name} > {name}.txt\n" + f": a line of {name}\n" * 90 for name in ("one", "two")]
    for text in texts:
        reason, detail = _miss(launcher, "sh", "-c", text)
        assert reason == "miss:new-input"
        assert len(detail) < 120
    assert detail == "there was no run with echo two > two.txt yet"


def test_outputs_are_not_what_is_compiled(launcher: Launcher) -> None:
    assert _miss(launcher, "fakecc", "-l", "/dev/null", "-o", "a.out") == ("miss:new-input", "a.out was never written")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["cd", "sub"], "'cd' is a word of the shell, and no program; write sh -c 'cd sub'"),
        (["export", "A=b c"], "write sh -c 'export '\"'\"'A=b c'\"'\"''"),
        (["no-such-tool"], "'no-such-tool' is not an executable in PATH; install it, or give its path"),
    ],
)
def test_a_word_that_is_no_program(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, line: list[str], words: str
) -> None:
    monkeypatch.setenv("PATH", os.fspath(launcher.folder))
    ran = launcher.run(*line)
    assert ran.code == 127
    assert words in ran.stderr


def test_make_is_told_where_the_launcher_stands(launcher: Launcher) -> None:
    need("make")
    write("Makefile", "all: ; cp Makefile out\n")
    words = "make compares the times of files; put cachec exec before the commands that make starts"
    reason, detail = _miss(launcher, "sh", "-c", "make")
    assert (reason, detail) == ("bypass:undescribed-effect", f"it starts make: {words}")
    assert words not in launcher.run("make").stderr  # CACHEC_LOG=off
    assert launcher.last().reason.value == "bypass:build-helper"


def test_make_itself_is_told_so(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    need("make")
    monkeypatch.setenv("CACHEC_LOG", "miss")
    said = launcher.run("make").stderr.splitlines()
    assert said[0] == (
        "cachec: bypass:build-helper exec:make: make compares the times of files; "
        "put cachec exec before the commands that make starts"
    )
