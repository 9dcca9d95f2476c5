"""Calls while the system refuses what cachec needs: they run, and the fault is counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Run

#: A stage with a tool, a file that it depends on and an array; called with ever more free descriptors, from none.
NO_DESCRIPTORS = """
import os, resource, sys
import numpy
import cachec
store, source, warm = sys.argv[1:]
def body(n): return numpy.arange(n)
stage = cachec.Cache(store, log="off").stage(name="s", tools=["msgspec"], depends=[source])(body)
if warm == "warm":
    stage(20000)
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for _ in range(24):
    value, outcome = stage.call(20000)
    assert (value == numpy.arange(20000)).all()
    print(outcome.reason.value, outcome.fault.value if outcome.fault else "")
    os.close(taken.pop())
"""

#: ``cachec`` with these arguments, in a folder that is gone.
FROM_NOWHERE = """
import os, sys
os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
os.execv(sys.executable, [sys.executable, "-m", "cachec", *sys.argv[1:]])
"""


@pytest.mark.parametrize("warm", ["warm", "cold"])
@pytest.mark.sampled
def test_no_free_descriptor(run: Run, place: Path, warm: str) -> None:
    (place / "source").write_text("x")
    (place / "source").chmod(0o644)
    done = run("-c", NO_DESCRIPTORS, place / "store", place / "source", warm)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 24
    assert said[-1] == "hit "
    without = [line for line in said if not line.startswith("hit")]
    assert without, "every call hit: nothing was tried"
    assert all(line.endswith("io-error") or line.startswith("miss") for line in without), said


def test_a_folder_that_is_gone(run: Run, place: Path) -> None:
    code = (
        "import os, sys, tempfile, cachec\n"
        "stage = cachec.Cache(sys.argv[1], log='off').stage(name='s', tools=['msgspec'])(lambda n: n + 1)\n"
        "os.chdir(tempfile.mkdtemp(dir=sys.argv[2])); os.rmdir(os.getcwd())\n"
        "print(stage.call(1)[0], stage.call(1)[1].reason.value)"
    )
    for _ in range(2):
        done = run("-c", code, place / "store", place)
        # Python's own path begins with the current folder: what it would import can't be told.
        assert done.stdout == "2 bypass:key-unreadable\n", done.stderr
    environ = {"CACHEC_DIR": str(place / "store")}
    for line in (("config",), ("stats",)):
        assert "Traceback" not in run("-c", FROM_NOWHERE, *line, environ=environ).stderr
    done = run("-c", FROM_NOWHERE, "exec", "--", "echo", "ran", environ=environ)
    assert (done.stdout, done.returncode) == ("ran\n", 0), done
    assert "bypass:key-unreadable" in run("-m", "cachec", "stats", environ=environ).stdout
    done = run("-c", FROM_NOWHERE, "exec", "--", "echo", "ran", environ=environ | {"CACHEC_MODE": "require"})
    assert (done.stdout, done.returncode) == ("", 2), done


#: A stage with a tool from a folder of packages, called without any privilege: root reads everything by one of them.
UNREADABLE = """
import ctypes, struct, sys
import cachec
store, site, mode = sys.argv[1:]
sys.path.append(site)
assert ctypes.CDLL(None).capset(struct.pack("Ii", 0x20080522, 0), bytes(24)) == 0
stage = cachec.Cache(store, log="off", mode=mode).stage(name="s", tools=["refused"])(lambda n: n + 1)
try:
    value, outcome = stage.call(1)
except cachec.errors.CacheMissError as error:
    print("refused", error)
else:
    print(value, outcome.reason.value, outcome.fault.value if outcome.fault else "")
"""


@pytest.mark.long
def test_the_folder_of_a_package_that_can_not_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "site" / "refused-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "RECORD").write_text("refused.py,,\n")
    (tmp_path / "site" / "refused.py").write_text("")

    def said(mode: str = "on") -> str:
        line = [sys.executable, "-c", UNREADABLE, str(tmp_path / "store"), str(tmp_path / "site"), mode]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert [said().split()[1].partition(":")[0] for _ in range(2)] == ["miss", "hit"]
    folder.chmod(0)
    try:
        assert said() == "2 bypass:key-unreadable store-unwritable"
        assert "bypass:key-unreadable" in said("require")
    finally:
        folder.chmod(0o755)
    assert said().startswith("2 hit")


def test_a_stdout_that_takes_nothing(run: Run, place: Path) -> None:
    """A hit on the short road raised: now the command is run, and says so itself."""
    (place / "in.txt").write_text("input\n")
    (place / "in.txt").chmod(0o644)
    code = (
        "import os, sys\n"
        "os.chdir(sys.argv[1])\n"
        "if sys.argv[2] == 'full':\n    os.dup2(os.open('/dev/full', os.O_WRONLY), 1)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'cachec', 'exec', '--input=in.txt', '--output=out.txt', '--',"
        " '/bin/cp', '-v', 'in.txt', 'out.txt'])"
    )
    for behind, status in (("pipe", 0), ("full", 1), ("pipe", 0)):
        done = run("-c", code, place, behind, environ={"CACHEC_DIR": str(place / "store")})
        assert done.returncode == status, done
        assert "Traceback" not in done.stderr
        assert (place / "out.txt").read_text() == "input\n"
    assert "write error" in run("-c", code, place, "full", environ={"CACHEC_DIR": str(place / "store")}).stderr


def test_a_descriptor_that_can_not_be_closed(tmp_path: Path) -> None:
    """Python prints what a ``__del__`` raises, with a traceback."""
    code = (
        "import os, sys, numpy, cachec\nfrom cachec.base.append_file import Appender\n"
        "weights = cachec.WeightSet.from_arrays({'a': numpy.ones(3)})\nweights.save(sys.argv[1])\n"
        "held = [Appender(sys.argv[2]), cachec.open_weights(sys.argv[1])]\nheld[1]['a'].read()\n"
        "os.closerange(3, 256)\n"
    )
    line = [sys.executable, "-c", code, str(tmp_path / "w.safetensors"), str(tmp_path / "log")]
    assert subprocess.run(line, capture_output=True, text=True, check=False).stderr == ""
