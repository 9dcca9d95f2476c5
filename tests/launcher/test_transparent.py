"""A command gives what it gives without cachec, whatever cachec can't take, or does wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cachec.launcher import execute, memo, traced_command
from tests.launcher.conftest import Launcher, write

_ODD = os.fsdecode(b"\xff")


def _run(*line: str, **how: object) -> tuple[int, bytes, bytes]:
    """A process of cachec, or the bare command where ``bare`` is true."""
    bare = how.pop("bare", False)
    words = [] if bare else [sys.executable, "-P", "-m", "cachec", "exec", "--"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "CACHEC_SERVER": "off"}
    environ |= dict(how.pop("env", {}))  # type: ignore[call-overload]
    ran = subprocess.run([*words, *line], capture_output=True, check=False, env=environ, **how)  # type: ignore[call-overload]
    return ran.returncode, ran.stdout, ran.stderr


#: What meets a name that is not UTF-8.
_SCRIPTS = {
    "read": "cat *; echo done",
    "listed": "ls; test -e *f",
    "written": "echo x > o$(printf '\\377'); echo done",
    "folder": "mkdir o$(printf '\\377'); echo done",
    "link": "ln -s $(printf '\\377') o; echo done",
    "removed": "echo x > o$(printf '\\377'); rm o*; echo done",
    "changed": "echo x >> $(printf '\\377'); echo done",
    "taken away": "rm $(printf '\\377'); echo done",
    "said": "printf '\\377'",
}


@pytest.mark.parametrize(
    ("script", "variable"),
    [
        *((name, "") for name in _SCRIPTS),
        *((name, variable) for variable in ("PATH", "HOME", "TMPDIR", "PWD", "OTHER") for name in ("read", "said")),
    ],
)
def test_a_name_that_is_not_utf8(launcher: Launcher, script: str, variable: str) -> None:
    value = f"{os.environ['PATH']}:/{_ODD}" if variable == "PATH" else f"/{_ODD}"
    environ = {variable: value} if variable else {}
    results = []
    for is_bare in (True, False, False):
        shutil.rmtree(launcher.folder, ignore_errors=True)
        launcher.folder.mkdir()
        os.chdir(launcher.folder)
        write(_ODD, "x\n")
        ran = _run("sh", "-c", _SCRIPTS[script], bare=is_bare, env=environ)
        results.append((*ran, sorted(map(os.fsencode, os.listdir()))))
    assert results[1:] == results[:1] * 2


@pytest.mark.parametrize("line", [(f"./{_ODD}",), ("sh", _ODD), ("cat", _ODD)])
def test_a_command_line_that_is_not_utf8(launcher: Launcher, line: tuple[str, ...]) -> None:
    write(_ODD, "#!/bin/sh\necho done\n").chmod(0o755)
    assert _run(*line)[:2] == _run(*line, bare=True)[:2]
    os.mkdir(f"d{_ODD}")
    assert _run("echo", "done", cwd=f"d{_ODD}") == (0, b"done\n", b"")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (execute, "describe_here"),
        (execute, "lock_outputs"),
        (traced_command, "unstorable"),
        (traced_command, "_result"),
        (traced_command, "find_variable_reads"),
        (memo.Draft, "write"),
    ],
)
def test_a_mistake_of_ours(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
    """Before the command runs it is passed through; after that it is not run again."""
    ran: list[str] = []

    def fail(*_: object, **__: object) -> None:
        raise LookupError("oh")

    def become(_program: str, argv: list[str], _stdin: int | None) -> int:
        ran.append(argv[-1])
        return 3

    monkeypatch.setattr("cachec.launcher.result.pass_through", become)
    monkeypatch.setattr(module, name, fail)
    said = launcher.run("sh", "-c", "echo x >> o; echo done")
    if ran:
        assert said.code == 3
        assert not os.path.exists("o")
        return
    assert (said.code, said.stdout, Path("o").read_text()) == (0, "done\n", "x\n")


#: Bare, a loop of look-ups goes on; the tracer has a signal's handler interrupt some.
_INTERRUPTED = """import os, signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, True)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for _ in range(3000): os.stat("/")
signal.setitimer(signal.ITIMER_REAL, 0)
print("done")
"""


def test_a_look_up_that_a_signal_interrupts(launcher: Launcher) -> None:
    for _ in range(5):
        assert _run(sys.executable, "-c", _INTERRUPTED)[:2] == (0, b"done\n")


@pytest.mark.parametrize("line", [("cat",), ("sh", "-c", "read x || echo none"), ("echo", "x")])
def test_standard_input_that_is_closed(launcher: Launcher, line: tuple[str, ...]) -> None:
    def close() -> None:
        os.close(0)

    for _ in range(2):
        assert _run(*line, stdin=subprocess.DEVNULL) == _run(*line, stdin=subprocess.DEVNULL, bare=True)
        assert _run(*line, preexec_fn=close) == _run(*line, preexec_fn=close, bare=True)


@pytest.mark.parametrize("kind", ["file", "folder", "in PATH", "none"])
def test_what_can_not_be_executed(launcher: Launcher, kind: str) -> None:
    write("bin/plain", "")
    os.mkdir("folder")
    name = {"file": "bin/plain", "folder": "./folder", "in PATH": "plain", "none": "./none"}[kind]
    environ = {"PATH": f"{os.getcwd()}/bin:{os.environ['PATH']}"}
    bare = _run("sh", "-c", f"exec {name}", bare=True, env=environ)
    assert _run(name, env=environ)[0] == bare[0] == (127 if kind == "none" else 126)
