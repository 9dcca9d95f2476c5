"""``cachec top``: what compiles now, once and again."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Shell

KEY = "ab" * 32


@pytest.fixture
def busy(shell: Shell) -> Shell:
    """A store in which one stage runs, as this process does it, and one waits."""
    near = shell.publish("cdcdcd", ())
    shell.held = shell.store.lock(KEY)  # type: ignore[attr-defined]
    assert shell.held.try_acquire()  # type: ignore[attr-defined]
    shell.held.note_run("pkg.build", near)  # type: ignore[attr-defined]
    shell.store.lock(KEY).note_wait(3.0)
    with open(shell.held.path, "a") as file:  # type: ignore[attr-defined]
        file.write("waits 4194305 5.0\n")  # beyond the highest pid: killed
    return shell


def test_what_runs_as_data(busy: Shell) -> None:
    (row,) = busy.json("top")["running"]
    assert (row["stage"], row["key"], row["pid"], row["last"]) == ("pkg.build", KEY, os.getpid(), 1.5)
    assert [each["pid"] for each in row["waiting"]] == [os.getpid()]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_what_runs_fits_the_terminal(busy: Shell, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    first, header, *rows = busy.run("top").output.splitlines()
    assert first == "1 running, 1 waiting"
    assert header.split()[:5] == ["stage", "runs", "for", "last", "time"]
    assert rows[0].split()[0] == "pkg.build"
    assert "1.50 s" in rows[0]
    assert f"pid {os.getpid()} for " in "\n".join(rows)
    assert all(len(line) <= columns for line in rows)


def test_nothing_runs(shell: Shell) -> None:
    assert shell.run("top").output == f"nothing runs in {shell.dir}: there is no store yet\n"
    assert shell.json("top")["running"] == []
    shell.publish("cdcdcd", ())
    assert shell.run("top", "--once").output == f"nothing runs in {shell.dir}\n"


def test_on_a_terminal_it_is_shown_anew_until_it_is_ended(busy: Shell) -> None:
    ours, theirs = pty.openpty()
    line = [sys.executable, "-m", "cachec", "--dir", str(busy.dir), "top", "--every", "0.1"]
    environ = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(line, stdout=theirs, stderr=subprocess.PIPE, env=environ) as process:
        os.close(theirs)
        seen = b""
        while seen.count(b"pkg.build") < 2:
            seen += os.read(ours, 1 << 16)
        busy.held.release()  # type: ignore[attr-defined]
        while b"nothing runs" not in seen:
            seen += os.read(ours, 1 << 16)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                seen += os.read(ours, 1 << 16)
            except OSError:  # EIO: the other side is closed
                break
        assert process.stderr is not None
        assert (process.wait(), process.stderr.read()) == (0, b"")
    os.close(ours)
    assert seen.startswith(b"\x1b[?1049h")
    assert seen.rstrip().endswith(b"\x1b[?1049l"), "what was on the screen is there again"


def test_a_lock_that_can_not_be_read(busy: Shell, tmp_path: Path) -> None:
    lock = busy.held.path  # type: ignore[attr-defined]
    lock.unlink()
    lock.symlink_to("/dev/zero")
    result = busy.run("top")
    assert result.exit_code in {0, 2}
    assert result.output.startswith(("nothing runs", "cachec: error: "))
