"""Standard input counts where a command used it, and then by what the command saw of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.launcher.conftest import Launcher, wait_for_clock, write
from tests.needs import need

KINDS = ("nothing", "pipe", "file", "other file", "terminal", "other terminal", "closed")


@contextmanager
def _opened(kind: str) -> Iterator[int]:
    """Standard input of a kind; pipe, file and terminal hold a line each."""
    others: list[int] = []
    if kind == "pipe":
        fd, given = os.pipe()
        os.write(given, b"of the pipe\n")
        os.close(given)
    elif "file" in kind:
        fd = os.open(write(kind, f"of the {kind}\n"), os.O_RDONLY)
    elif "terminal" in kind:
        masters = [os.openpty() for _ in range(2 if "other" in kind else 1)]
        others = [*masters[-1][:1], *(fd for pair in masters[:-1] for fd in pair)]
        fd = masters[-1][1]
    else:
        fd = os.open(os.devnull, os.O_RDONLY)
    try:
        yield fd
    finally:
        for each in (fd, *others):
            os.close(each)


def _run(launcher: Launcher, line: tuple[str, ...], kind: str) -> str:
    """The reason of a run with standard input of a kind."""
    wait_for_clock()
    program = [sys.executable, "-m", "cachec", "exec", "--", *line]
    if kind == "closed":
        program = ["sh", "-c", 'exec "$@" <&-', "sh", *program]
    with _opened(kind) as fd:
        subprocess.run(program, stdin=fd, capture_output=True, check=True)
    return launcher.last().reason.value


@pytest.mark.parametrize(
    "line",
    [
        ("cp", "a.c", "b"),
        ("gcc", "-c", "a.c", "-o", "a.o"),
        ("sh", "-c", ": > out"),
        (sys.executable, "-c", "print(1)"),
    ],
    ids=["cp", "gcc", "sh", "python"],
)
def test_what_is_not_read_does_not_count(launcher: Launcher, line: tuple[str, ...]) -> None:
    need(line[0])
    write("a.c", "int f;\n")
    # Python asks whether its standard input is a terminal.
    kinds = [kind for kind in KINDS if line[0] != sys.executable or "terminal" not in kind]
    for _ in range(2):  # without its output, and with it
        _run(launcher, line, kinds[0])
    assert {kind: _run(launcher, line, kind) for kind in kinds} == dict.fromkeys(kinds, "hit")


def test_what_is_asked_of_a_terminal_counts(launcher: Launcher) -> None:
    line = ("sh", "-c", "test -t 0 && echo yes > out || echo no > out")
    assert [_run(launcher, line, kind) for kind in KINDS] == [
        *("miss:new-input", "hit", "hit", "hit", "miss:dependency-changed", "hit", "hit")
    ]
    assert [_run(launcher, line, kind) for kind in KINDS] == ["hit"] * len(KINDS)


@pytest.mark.parametrize(
    ("request_", "kinds"),
    [("TCGETS", ["miss", "miss"]), ("TIOCGWINSZ", ["miss", "bypass"]), ("FIONREAD", ["miss", "bypass"])],
)
def test_what_else_a_terminal_answers(launcher: Launcher, request_: str, kinds: list[str]) -> None:
    """Whether it is one counts. Its size does not, and what it holds is standard input."""
    script = f"import fcntl, termios\ntry: fcntl.ioctl(0, termios.{request_}, bytes(64))\nexcept OSError: pass"
    found = [_run(launcher, (sys.executable, "-S", "-c", script), kind) for kind in ("nothing", "terminal")]
    assert [each.partition(":")[0] for each in found] == kinds


def test_what_is_read_counts(launcher: Launcher) -> None:
    line = ("cat",)
    kinds = [kind for kind in KINDS if "terminal" not in kind and kind != "closed"]
    found = [_run(launcher, line, kind) for kind in kinds]
    assert found == [
        "miss:first-run",
        "bypass:undescribed-effect",
        "miss:dependency-changed",
        "miss:dependency-changed",
    ]
    assert [_run(launcher, line, kind) for kind in kinds] == ["hit", "bypass:undescribed-effect", "hit", "hit"]
