"""Calls while the system refuses what cachec needs: they run, and the fault is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

import cachec
from cachec.errors import CacheMissError
from cachec.model import Mode, Reason

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
    for line in (("exec", "--", "true"), ("config",), ("stats",)):
        done = run("-c", FROM_NOWHERE, *line, environ={"CACHEC_DIR": str(place / "store")})
        assert "Traceback" not in done.stderr, done


def test_an_unreadable_key_runs_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = cachec.Cache(tmp_path / "store", log="off")
    calls: list[int] = []
    stage = opened.stage(name="s", version="1")(lambda n: calls.append(n))

    def refuse(*_args: object, **_given: object) -> None:
        raise PermissionError(13, "Permission denied", "/site/unreadable")

    monkeypatch.setattr(stage._engine.tools.requests, "request", refuse)
    _, outcome = stage.call(1)
    assert (outcome.reason, outcome.fault and outcome.fault.value) == (Reason.KEY_UNREADABLE, "store-unwritable")
    assert calls == [1]
    monkeypatch.setattr(stage, "mode", Mode.REQUIRE)
    with pytest.raises(CacheMissError, match="bypass:key-unreadable"):
        stage(1)
    assert calls == [1]
