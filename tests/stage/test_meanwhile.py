"""What another run of the process imports or fills while a run goes on, which takes it then. Each turn of the two is
waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Program

STAGE = """
import threading
import cachec
cache = cachec.Cache("cache", log="off", mode="on")
def turn(n):
    turns = getattr(threading, "tur" + "ns", None)
    if n == 1 and turns is not None:
        turns[0].set()
        turns[1].wait()
@cache.stage
def stage(n):
    turn(n)
    BODY
"""
#: The run of 1 begins, that of 0 begins and ends, that of 1 goes on.
BOTH = """
import threading
from st import stage
from threading import Event
threading.turns = Event(), Event()
told = []
thread = threading.Thread(target=lambda: told.append(stage.call(1)))
thread.start()
threading.turns[0].wait()
assert stage(0) == 't1'
threading.turns[1].set()
thread.join()
(value, outcome), = told
assert value == 't1'
print(outcome.reason.value)
"""
ALONE = "from st import stage\nvalue, outcome = stage.call(1)\nprint(value, outcome.reason.value)\n"


@pytest.mark.parametrize(
    ("module", "body"),
    [
        ("x = open('conf/settings').read()\n", "import late; return late.x"),
        ("class X:\n    x = open('conf/settings').read()\n", "import late; return late.X.x"),
        ("x = open('conf/settings').read()\n", "import importlib; return importlib.import_module('la' + 'te').x"),
    ],
)
def test_what_a_module_read_as_another_run_imported_it_counts(
    tmp_path: Path, program: Program, module: str, body: str
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "late.py").write_text(module)
    (tmp_path / "conf" / "settings").write_text("t1")
    (tmp_path / "st.py").write_text(STAGE.replace("BODY", body))
    (tmp_path / "both.py").write_text(BOTH)
    (tmp_path / "alone.py").write_text(ALONE)
    assert program(tmp_path / "both.py") == "miss:first-run"
    (tmp_path / "conf" / "settings").write_text("t2")
    assert program(tmp_path / "alone.py").startswith("t2 miss:")
    assert program(tmp_path / "alone.py") == "t2 hit"


def test_what_another_run_imports_and_its_text_tells_keeps_nothing_out(tmp_path: Path, program: Program) -> None:
    (tmp_path / "late.py").write_text("def f(): return 't1'\n")
    (tmp_path / "st.py").write_text(STAGE.replace("BODY", "import late; return late.f()"))
    (tmp_path / "both.py").write_text(BOTH)
    (tmp_path / "alone.py").write_text(ALONE)
    assert program(tmp_path / "both.py") == "miss:first-run"
    assert program(tmp_path / "alone.py") == "t1 hit"
