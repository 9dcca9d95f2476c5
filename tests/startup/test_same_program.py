"""``cachec python`` runs a program as Python itself does, and refuses where it can't have it cached."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.startup.conftest import made

PROBE = """
'''A program.'''
import json, os, sys, sysconfig
main = sys.modules["__main__"]
loader = getattr(__loader__, "__name__", type(__loader__).__name__)
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "path": sys.path, "names": sorted(globals()),
    "main": main.__dict__ is globals(), "file": globals().get("__file__"), "cached": globals().get("__cached__"),
    "spec": __spec__ and __spec__.name, "package": __package__, "loader": loader, "doc": __doc__, "name": __name__,
    "flags": repr(sys.flags), "warnings": sys.warnoptions, "options": sys._xoptions, "folder": os.getcwd(),
    "files": [fd for fd in range(100) if os.path.lexists(f"/proc/self/fd/{fd}")], "executable": sys.executable,
    "excepthook": sys.excepthook is sys.__excepthook__, "asserts": __debug__, "optimised": sys.flags.optimize,
}))
"""

LINES = {
    "script": ["sub/probe.py", "a", "-b", "--help"],
    "package folder": ["package", "x"],
    "module": ["-m", "package", "-c", "x"],
    "command": ["-c", PROBE, "-c", "x"],
    "joined options": ["-BuXdev", "-Wignore", "-OO", "probe.py"],
    "isolated": ["-I", "probe.py"],
    "end of options": ["--", "probe.py", "-x"],
    "standard input": ["-", "x"],
}


@pytest.fixture
def programs(tmp_path: Path) -> None:
    for name in ("probe.py", "sub/probe.py", "package/__main__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(PROBE)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
@pytest.mark.usefixtures("programs")
def test_the_program_sees_what_it_sees_in_plain_python(python, run, line):
    bare = run(python, *line, stdin=PROBE)
    ours = run(python, "-m", "cachec", "python", *line, stdin=PROBE)
    assert bare.returncode == 0, bare.stderr
    assert (ours.returncode, ours.stderr) == (0, bare.stderr)
    assert json.loads(ours.stdout) == json.loads(bare.stdout)


ENDS = {
    "status": "import sys; sys.exit(3)",
    "error": "def f():\n    raise ValueError('x')\n\nf()",
    "syntax": "x = = 1",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "exit": "import atexit; atexit.register(print, 'end'); raise RuntimeError",
}


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_the_program_ends_as_in_plain_python(python, run, tmp_path, program):
    (tmp_path / "program.py").write_text(program + "\n")
    bare = run(python, "program.py")
    ours = run(python, "-m", "cachec", "python", "program.py")
    assert (ours.returncode, ours.stdout, ours.stderr) == (bare.returncode, bare.stdout, bare.stderr)


@pytest.mark.parametrize("line", [["-V"], ["missing.py"], ["-m"], ["-i", "program.py", "x"]], ids=" ".join)
def test_other_lines(python, run, tmp_path, line):
    (tmp_path / "program.py").write_text("y = 2\n")
    bare = run(python, *line, stdin="print(y, __name__)\n")
    ours = run(python, "-m", "cachec", "python", *line, stdin="print(y, __name__)\n")
    assert (ours.returncode, ours.stdout, ours.stderr) == (bare.returncode, bare.stdout, bare.stderr)


def test_without_a_startup_file_it_says_what_to_do_and_runs_nothing(run, tmp_path):
    python = made(tmp_path / "without", has_startup_file=False)
    done = run(python, "-m", "cachec", "python", "-c", "open('ran', 'w')")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"cachec: error: {python} has no cachec-startup.pth")
    assert str(tmp_path / "without" / "lib") in line
    assert "Install cachec there" in line
    assert not (tmp_path / "ran").exists()
    assert run(python, "-m", "cachec", "python", "--help").returncode == 0


def test_a_signal_reaches_the_program(python, run):
    program = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5))
os.kill(os.getppid(), 0)
signal.raise_signal(signal.SIGUSR1)
"""
    assert run(python, "-m", "cachec", "python", "-c", program).returncode == 5
    words = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.SIGPIPE)"
    assert run(python, "-m", "cachec", "python", "-c", words).stdout == f"True {int(signal.SIGPIPE)}\n"


def test_the_store_of_the_line_is_that_of_the_program(python, run, tmp_path):
    program = "import os; print(os.environ['CACHEC_DIR'], os.environ['CACHEC_INSTALL'])"
    ours = run(python, "-m", "cachec", "--dir", tmp_path / "other", "python", "-c", program)
    assert ours.stdout == f"{tmp_path / 'other'} jax,torch\n", ours.stderr


def test_help_is_of_the_command_in_the_first_place_alone(python, run):
    assert "Usage: cachec python" in run(python, "-m", "cachec", "python", "--help").stdout
    assert run(python, "-m", "cachec", "python", "-c", "import sys; print(sys.argv)", "-h").stdout == "['-c', '-h']\n"
