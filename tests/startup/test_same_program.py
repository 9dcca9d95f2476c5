"""``cachec python`` runs a program as Python itself does, with the startup file and without."""

from __future__ import annotations

import json
import signal
import zipfile
from pathlib import Path

import pytest

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
    "script": ["probe.py", "a", "-b"],
    "path": ["./probe.py"],
    "folder": ["sub/probe.py", "--help"],
    "link": ["link.py"],
    "package folder": ["package", "x"],
    "zip": ["app.zip", "x"],
    "compiled": ["probe.pyc"],
    "module": ["-m", "probe", "-c", "x"],
    "package": ["-m", "package"],
    "joined module": ["-mpackage.inner", "y"],
    "command": ["-c", PROBE, "-c", "x"],
    "joined": ["-Oc", PROBE, "x"],
    "optimised": ["-OO", "probe.py"],
    "development": ["-X", "dev", "probe.py"],
    "joined options": ["-BuXdev", "-Wignore", "probe.py"],
    "isolated": ["-I", "probe.py"],
    "isolated module": ["-I", "-c", PROBE],
    "safe path": ["-P", "sub/probe.py"],
    "environment": ["-E", "-s", "probe.py"],
    "warnings": ["-W", "error", "probe.py"],
    "hashes": ["--check-hash-based-pycs", "always", "probe.py"],
    "end of options": ["--", "probe.py", "-x"],
    "standard input": [],
    "dash": ["-", "x"],
    "dash isolated": ["-I", "-"],
}


@pytest.fixture
def programs(tmp_path: Path) -> None:
    import py_compile

    for name in ("probe.py", "sub/probe.py", "package/__main__.py", "package/inner.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(PROBE)
    (tmp_path / "link.py").symlink_to("sub/probe.py")
    py_compile.compile(str(tmp_path / "probe.py"), cfile=str(tmp_path / "probe.pyc"))
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", PROBE)


@pytest.mark.parametrize("kind", ["with", "without"])
@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
@pytest.mark.usefixtures("programs")
def test_the_program_sees_what_it_sees_in_plain_python(pythons, run, kind, line):
    python = pythons[kind]
    bare = run(python, *line, stdin=PROBE)
    ours = run(python, "-m", "cachec", "python", *line, stdin=PROBE)
    assert bare.returncode == 0, bare.stderr
    assert (ours.returncode, ours.stderr) == (0, bare.stderr)
    assert json.loads(ours.stdout) == json.loads(bare.stdout)


ENDS = {
    "status": "import sys; sys.exit(3)",
    "words": "import sys; sys.exit('no')",
    "error": "def f():\n    raise ValueError('x')\n\nf()",
    "chain": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('x') from error",
    "syntax": "x = = 1",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "hook": "import sys\nsys.excepthook = lambda kind, value, tb: print(kind, tb.tb_frame.f_lineno)\nraise OSError",
    "warning": "import warnings; warnings.warn('old')",
    "exit": "import atexit; atexit.register(print, 'end'); raise RuntimeError",
    "missing name": "print(unknown)",
}


@pytest.mark.parametrize("kind", ["with", "without"])
@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_the_program_ends_as_in_plain_python(pythons, run, tmp_path, kind, program):
    (tmp_path / "program.py").write_text(program + "\n")
    for line in (["program.py"], ["-m", "program"], ["-c", program], ["-"]):
        bare = run(pythons[kind], *line, stdin=program)
        ours = run(pythons[kind], "-m", "cachec", "python", *line, stdin=program)
        assert (ours.returncode, ours.stdout, ours.stderr) == (bare.returncode, bare.stdout, bare.stderr), line


@pytest.mark.parametrize("kind", ["with", "without"])
@pytest.mark.parametrize(
    "line",
    [["-V"], ["missing.py"], ["-m", "missing"], ["-c"], ["-m"], ["--unknown"], ["-W"], ["-i", "program.py", "x"],
     ["-i", "-c", "y = 3"], ["-q", "-i", "-m", "program"]],
    ids=" ".join,
)  # fmt: skip
def test_other_lines(pythons, run, tmp_path, kind, line):
    (tmp_path / "program.py").write_text("y = 2\n")
    bare = run(pythons[kind], *line, stdin="print(y, __name__)\n")
    ours = run(pythons[kind], "-m", "cachec", "python", *line, stdin="print(y, __name__)\n")
    assert (ours.returncode, ours.stdout, ours.stderr) == (bare.returncode, bare.stdout, bare.stderr)


@pytest.mark.parametrize("kind", ["with", "without"])
def test_a_signal_reaches_the_program(pythons, run, tmp_path, kind):
    program = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5))
os.kill(os.getppid(), 0)
signal.raise_signal(signal.SIGUSR1)
"""
    assert run(pythons[kind], "-m", "cachec", "python", "-c", program).returncode == 5
    words = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.SIGPIPE)"
    assert run(pythons[kind], "-m", "cachec", "python", "-c", words).stdout == f"True {int(signal.SIGPIPE)}\n"


def test_the_store_of_the_line_is_that_of_the_program(python, run, tmp_path):
    program = "import os; print(os.environ['CACHEC_DIR'], os.environ['CACHEC_INSTALL'])"
    ours = run(python, "-m", "cachec", "--dir", tmp_path / "other", "python", "-c", program)
    assert ours.stdout == f"{tmp_path / 'other'} jax,torch\n", ours.stderr


def test_help_is_of_the_command_in_the_first_place_alone(python, run):
    assert "Usage: cachec python" in run(python, "-m", "cachec", "python", "--help").stdout
    assert run(python, "-m", "cachec", "python", "-c", "import sys; print(sys.argv)", "-h").stdout == "['-c', '-h']\n"
