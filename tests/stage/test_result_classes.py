"""Results of the project's classes whose module a stage imports inside: each process of a case is a new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Program

_CONFIG = """import dataclasses, enum, typing
@dataclasses.dataclass(frozen=True)
class Data:
    a: int = 1
class Member(enum.Enum):
    one = 1
class Tuple(typing.NamedTuple):
    a: int = 1
    b: object = Member.one
def make():
    return Data(3)
"""
_MAIN = """import cachec
cache = cachec.Cache()
@cache.stage
def stage(x):
    import config
    from config import Data, Member, Tuple
    return {0}
value, outcome = cache.call(stage, 1)
again = cache.call(stage, 1)[1].reason.value
import config
Data, Member, Tuple = config.Data, config.Member, config.Tuple
expected = {0}
print(outcome.reason.value, again, value == expected, type(value) is type(expected), outcome.fault)
"""


def _process(program: Program, folder: Path, script: str = "main.py") -> str:
    return program(folder / "p" / script, CACHEC_DIR=str(folder / "store"))


def _project(folder: Path, files: dict[str, str]) -> None:
    (folder / "p").mkdir()
    for name, text in {"pyproject.toml": "", **files}.items():
        (folder / "p" / name).write_text(text)


@pytest.mark.parametrize(
    "value",
    ["Data(2)", "Member.one", "Tuple(2)", "[Data(2), Member.one]", "{'k': [Tuple(2, Data(3))]}", "config.make()"],
)
def test_a_new_process_hits(tmp_path: Path, program: Program, value: str) -> None:
    _project(tmp_path, {"config.py": _CONFIG, "main.py": _MAIN.format(value)})
    assert _process(program, tmp_path) == "miss:first-run hit True True None"
    assert _process(program, tmp_path) == "hit hit True True None"


_ASK = """import sys, main
value, outcome = main.cache.call(main.stage, 1)
print(outcome.reason.value, outcome.fault, [each for each in ("evil", "this") if each in sys.modules], outcome.detail)
"""
_STAGE = """import cachec
cache = cachec.Cache()
@cache.stage
def stage(x):
    from config import Data
    return [Data()]
"""


def test_a_module_that_only_a_run_leads_to(tmp_path: Path, program: Program) -> None:
    main = (
        _STAGE[: _STAGE.index("    from")]
        + "    import importlib\n    return importlib.import_module('con' + x).make()\n"
    )
    _project(tmp_path, {"config.py": _CONFIG, "main.py": main, "ask.py": _ASK.replace("stage, 1", "stage, 'fig'")})
    assert _process(program, tmp_path, "ask.py").startswith("miss:first-run None []")
    assert _process(program, tmp_path, "ask.py").startswith("hit None []")


@pytest.mark.parametrize("error", ["LookupError('no luck')", "SystemExit('no luck')"])
def test_an_import_that_raises_is_a_miss_with_its_reason(tmp_path: Path, program: Program, error: str) -> None:
    def process(head: str) -> str:
        (tmp_path / "p" / "ask.py").write_text(head + _ASK)
        return _process(program, tmp_path, "ask.py")

    _project(tmp_path, {"config.py": _CONFIG, "main.py": _STAGE})
    assert process("").startswith("miss:first-run None []")
    broken = f"""import importlib
kept = importlib.import_module
def refuse(name, package=None):
    if name == "config": raise {error}
    return kept(name, package)
importlib.import_module = refuse
"""
    told = process(broken)
    assert told.startswith("miss:class-not-loaded None []")
    assert told.endswith(f"importing it raised {error.partition('(')[0]}: no luck")
    assert process("").startswith("hit None []")


@pytest.mark.parametrize("name", ["evil", "this", "../evil", ".evil", "evil.more", "", "no\0thing", "xml.dom.minidom"])
def test_a_row_that_names_another_module_imports_nothing(tmp_path: Path, program: Program, name: str) -> None:
    """evil: of the project, and nothing that the stage reaches; this: Python's own."""
    forged = f"""import msgspec, sys
from cachec.store.store import Store
kept = Store.lookup
def lookup(self, key):
    entry = kept(self, key)
    trace = entry.traces[0]
    value = msgspec.structs.replace(trace.value.items[0], dataclass={name + ":Data"!r})
    return msgspec.structs.replace(entry, traces=(msgspec.structs.replace(trace, value=value),))
Store.lookup = lookup
sys.modules.pop("this", None)
"""
    evil = "import dataclasses\nopen('ran', 'w').close()\n@dataclasses.dataclass\nclass Data:\n    a: int = 1\n"
    _project(tmp_path, {"config.py": _CONFIG, "main.py": _STAGE, "evil.py": evil, "ask.py": _ASK})
    assert _process(program, tmp_path, "ask.py").startswith("miss:first-run None []")
    (tmp_path / "p" / "ask.py").write_text(forged + _ASK)
    told = _process(program, tmp_path, "ask.py")
    assert told.startswith("miss:class-not-loaded None []")
    assert "no module of the project that the stage is known to reach" in told
    assert not (tmp_path / "p" / "ran").exists()
