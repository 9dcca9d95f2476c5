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


SETTINGS = """
import functools
class Config:
    @functools.cached_property
    def text(self): return open('conf/settings').read()
config = Config()
@functools.lru_cache(4)
def least(name): return open('conf/' + name).read()
@functools.cache
def most(): return open('conf/settings').read()
def own(n): return Config().text
"""


@pytest.mark.parametrize(
    "body",
    [
        "from settings import least; return least('settings')",
        "import settings; return settings.most()",
        "from settings import least; least('other'); return least('settings')",
        "from settings import config; return config.text",
    ],
)
@pytest.mark.parametrize("is_imported", [True, False], ids=["imported before", "imported inside"])
def test_what_another_run_filled_keeps_the_result_out(
    tmp_path: Path, program: Program, body: str, is_imported: bool
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "settings").write_text("t1")
    (tmp_path / "conf" / "other").write_text("")
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "st.py").write_text(STAGE.replace("BODY", body))
    (tmp_path / "both.py").write_text("import settings\n" * is_imported + BOTH)
    (tmp_path / "alone.py").write_text(ALONE)
    said = program(tmp_path / "both.py")
    assert said == "bypass:stale-memo" or "config" in body, "what holds a cached property may count by its value"
    (tmp_path / "conf" / "settings").write_text("t2")
    assert program(tmp_path / "alone.py").startswith("t2 miss:")
    assert program(tmp_path / "alone.py") == "t2 hit"


def test_what_a_run_filled_itself_is_stored_though_others_go_on(tmp_path: Path, program: Program) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "0").write_text("t1")
    (tmp_path / "conf" / "1").write_text("t1")
    (tmp_path / "conf" / "settings").write_text("t1")
    (tmp_path / "settings.py").write_text(SETTINGS)
    body = "from settings import least, own; least(str(n)); return own(n)"
    (tmp_path / "st.py").write_text(STAGE.replace("BODY", body))
    (tmp_path / "both.py").write_text("import settings\n" + BOTH)
    (tmp_path / "alone.py").write_text(ALONE)
    assert program(tmp_path / "both.py") == "miss:first-run"
    (tmp_path / "conf" / "1").write_text("t2")
    assert program(tmp_path / "alone.py").startswith("t1 miss:")


STORED = """
from st import stage
value, outcome = stage.call(1)
print(value, outcome.stored)
"""


@pytest.mark.parametrize("body", ["least('settings'); return least('settings')", "config.text; return config.text"])
def test_a_run_alone_that_fills_its_memo_and_uses_it_is_stored(tmp_path: Path, program: Program, body: str) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "settings").write_text("t1")
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "st.py").write_text(STAGE.replace("BODY", f"from settings import config, least; {body}"))
    (tmp_path / "alone.py").write_text(STORED)
    assert program(tmp_path / "alone.py") == "t1 True"


GATHER = """
import asyncio
import cachec
from settings import least
cache = cachec.Cache("cache", log="off", mode="on")
@cache.stage(ignore=["turns"])
async def stage(n, turns):
    begun, over = turns
    if n == 1:
        begun.set()
        await over.wait()
    return least('settings')
async def main():
    turns = asyncio.Event(), asyncio.Event()
    begun, over = turns
    slow = asyncio.create_task(stage.call(1, turns))
    await begun.wait()
    await stage(0, turns)
    over.set()
    value, outcome = await slow
    print(value, outcome.reason.value)
asyncio.run(main())
"""


def test_so_does_what_another_task_filled(tmp_path: Path, program: Program) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "settings").write_text("t1")
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "gather.py").write_text(GATHER)
    assert program(tmp_path / "gather.py") == "t1 bypass:stale-memo"
