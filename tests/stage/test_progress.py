"""What a person sees of a stage that runs."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cachec.stage import progress
from cachec.stage.progress import Progress, run_words, way_to_show

_SCRIPT = """
import os, sys
import cachec

cache = cachec.Cache(sys.argv[1])

@cache.stage
def outer(number: int) -> int:
    return inner(number)

@cache.stage(depends=())
def inner(number: int) -> int:
    os.read({told}, 1)  # until the test has seen what it waits for
    return number

outer(int(sys.argv[2]))
"""


def _on_a_terminal(folder: Path, number: int, until: bytes, **environ: str) -> bytes:
    """What a run writes to its terminal, which ends when it has written ``until``."""
    told, tell = os.pipe()
    ours, theirs = pty.openpty()
    (folder / "script.py").write_text(_SCRIPT.format(told=told))
    line = [sys.executable, "script.py", str(folder / "store"), str(number)]
    environ = {name: value for name, value in os.environ.items() if name != "CI"} | {"TERM": "xterm"} | environ
    with subprocess.Popen(line, cwd=folder, stderr=theirs, pass_fds=(told,), env=environ) as process:
        os.close(theirs)
        os.close(told)
        seen = b""
        while True:
            if until in seen and tell >= 0:
                os.write(tell, b".")
                os.close(tell)
                tell = -1
            try:
                seen += os.read(ours, 1 << 16)
            except OSError:  # EIO: the other side is closed
                break
    os.close(ours)
    assert process.returncode == 0, seen
    return seen


def test_a_terminal_shows_what_runs_and_how_long_it_took_last_time(tmp_path: Path) -> None:
    seen = _on_a_terminal(tmp_path, 1, b"outer runs for")
    assert b"last time" not in seen
    assert b"inner runs" not in seen, "one line is enough"
    line, _, after = seen.rpartition(b"\x1b[K")
    assert line.startswith(b"\r\x1b[Kcachec: __main__.outer runs for "), "written over the one before"
    assert b"runs for" not in after, "and gone at the end"
    assert b"cachec: miss __main__.outer: first-run" in after
    assert b" s, last time " in _on_a_terminal(tmp_path, 2, b"last time")


class _Stream(io.StringIO):
    def fileno(self) -> int:
        return os.open(os.devnull, os.O_RDONLY)


class _OfANotebook(io.StringIO):
    __module__ = "ipykernel.iostream"


@pytest.mark.parametrize(
    ("stream", "environ", "every"),
    [
        (_Stream, {}, None),
        (_Stream, {"CI": "false"}, None),
        (_Stream, {"CI": "true"}, 60.0),
        (_OfANotebook, {"CI": "true"}, 1.0),
        (io.StringIO, {"CI": "true"}, None),
        (lambda: None, {"CI": "true"}, None),
    ],
)
def test_who_sees_it(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], environ: Mapping[str, str], every: float | None
) -> None:
    monkeypatch.setattr(sys, "stderr", stream())
    way = way_to_show(lambda _: None, environ)
    assert (way and way[1]) == every


def test_a_terminal_that_can_not_go_back_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w") as stream, open(ours, "rb"):
        monkeypatch.setattr(sys, "stderr", stream)
        assert way_to_show(print, {"TERM": "dumb"}) is None
        assert way_to_show(print, {"TERM": "xterm"}) is not None


def test_a_notebook_has_its_line_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _OfANotebook()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "20")
    way = way_to_show(print, {})
    assert way is not None
    way[0]("cachec: lower runs for 3.0 s")
    way[0]("")
    assert stream.getvalue() == "\rcachec: lower runs \r" + "\r" + " " * 19 + "\r"


def test_the_lines() -> None:
    shown: list[str] = []
    clock = iter([0.0, 1.04, 61.0, 600.0])

    def show(line: str) -> None:
        shown.append(line)
        if len(shown) == 3:
            running._over.set()

    running = Progress(show, 0.0, run_words("lo\x1b[2Jwer", 48.2))
    running._over.wait = lambda _: running._over.is_set()  # type: ignore[method-assign]
    original, progress.time.monotonic = progress.time.monotonic, lambda: next(clock)  # type: ignore[assignment]
    try:
        running._run()
    finally:
        progress.time.monotonic = original
    assert [line.partition(" runs for ")[2] for line in shown] == [
        "1.0 s, last time 48 s",
        "1 min 1 s, last time 48 s",
        "10 min 0 s, last time 48 s",
    ]
    assert "\x1b" not in shown[0]


@pytest.mark.parametrize("value", ["off", "0", "false"])
def test_it_can_be_off(tmp_path: Path, value: str) -> None:
    seen = _on_a_terminal(tmp_path, 1, b"", CACHEC_PROGRESS=value)
    assert b"runs for" not in seen
