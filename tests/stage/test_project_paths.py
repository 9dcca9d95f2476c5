"""Globals that are paths below the project's folder: another checkout hits, unless its path is in the result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from .conftest import Program

_HEAD = """
import os, sys, json, types, dataclasses
from pathlib import Path
import cachec
cache = cachec.Cache()
"""
#: The statements of a module that say where it is, and what a stage reads of that.
PLACES = {
    "a folder": ("HERE = Path(__file__).parent", "(HERE / 'data.txt').read_text()"),
    "a folder, resolved": ("ROOT = Path(__file__).resolve().parents[1]", "(ROOT / 'data.txt').read_text()"),
    "a file": ("DATA = Path(__file__).parent / 'data.txt'", "DATA.read_text()"),
    "text": ("HERE = os.path.dirname(__file__)", "open(os.path.join(HERE, 'data.txt')).read()"),
    "absolute text": ("HERE = os.path.dirname(os.path.abspath(__file__))", "open(HERE + '/data.txt').read()"),
    "text of a path": ("DATA = str(Path(__file__).with_name('data.txt'))", "open(DATA).read()"),
    "in a table": ("T = {'data': [Path(__file__).parent / 'data.txt']}", "T['data'][0].read_text()"),
    "in an object": (
        "@dataclasses.dataclass(frozen=True)\nclass C:\n    root: Path\n    names: tuple\n"
        "C0 = C(Path(__file__).parent, (os.path.dirname(__file__), 'data.txt'))",
        "(C0.root / C0.names[1]).read_text()",
    ),
    "a default": (
        "def read(path=Path(__file__).parent / 'data.txt'): return path.read_text()",
        "read()",
    ),
    "a closure": (
        "def made(path):\n    return lambda: path.read_text()\nread = made(Path(__file__).parent / 'data.txt')",
        "read()",
    ),
}  # fmt: skip
#: What of a path is a value of the result, so that another checkout must have its own.
VALUES = [
    *("str(HERE)", "[str(HERE / 'x')]", "{'at': os.fspath(HERE)}", "os.fsencode(HERE)", "'-I' + str(HERE)"),
    *("str(HERE) * 2000", "os.fsencode(HERE) * 2000", "{str(HERE): 1}"),
    *("__file__ * 2000", "[__file__.encode() * 2000]", "(lambda: 0).__code__.co_filename * 2000"),
]


def _write(folder: Path, modules: list[tuple[str, str]]) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "pyproject.toml").write_text("")
    for place in (folder, folder / "sub"):
        (place / "data.txt").write_text("data")
    calls = []
    for number, (statements, expression) in enumerate(modules):
        body = f"{_HEAD}{statements}\n@cache.stage\ndef stage():\n    return {expression}\n"
        (folder / "sub" / f"places{number}.py").write_text(body)
        lazy = f"@cache.stage\ndef lazy{number}():\n    import lazy_places{number} as m\n    return m.f()\n"
        text = f"import os, dataclasses\nfrom pathlib import Path\n{statements}\ndef f():\n    return {expression}\n"
        (folder / "sub" / f"lazy_places{number}.py").write_text(text)
        calls.append((f"import places{number}\n", f"places{number}.stage", lazy, f"lazy{number}"))
    script = folder / "sub" / "run.py"
    script.write_text(
        f"{_HEAD}{''.join(each[0] + each[2] for each in calls)}"
        f"stages = [{', '.join(f'{each[1]}, {each[3]}' for each in calls)}]\n"
        "ended = [stage.call() for stage in stages]\n"
        "print(json.dumps([[repr(value), outcome.reason.value] for value, outcome in ended]))\n"
    )
    return script


def test_another_checkout_hits(tmp_path: Path, program: Program) -> None:
    store = str(tmp_path / "store")
    first = json.loads(program(_write(tmp_path / "one", list(PLACES.values())), CACHEC_DIR=store))
    assert {reason for _, reason in first} == {"miss:first-run"}
    script = _write(tmp_path / "other/deeper", list(PLACES.values()))
    names = [f"{name}, {how}" for name in PLACES for how in ("at the top", "imported inside")]
    second = dict(zip(names, json.loads(program(script, CACHEC_DIR=store)), strict=True))
    assert {name: ended for name, ended in second.items() if ended != [repr("data"), "hit"]} == {}


def test_another_checkout_has_its_own_path_in_a_result(tmp_path: Path, program: Program) -> None:
    store = str(tmp_path / "store")
    modules = [("HERE = Path(__file__).parent", each) for each in VALUES]
    for folder in ("one", "two"):
        script = _write(tmp_path / folder, modules)
        first, again = (json.loads(program(script, CACHEC_DIR=store)) for _ in range(2))
        assert {reason.partition(":")[0] for _, reason in first} == {"miss"}, folder
        assert {reason for _, reason in again} == {"hit"}, folder
        for value, _ in (*first, *again):
            assert f"/{folder}/sub" in value


_MAKES_A_FILE = """
@cache.stage
def stage():
    with cachec.scratch() as folder:
        path = Path(folder, "config.txt")
        path.write_text(__file__)
        return cachec.File(path)
print(Path(stage().path).read_text())
"""


@pytest.mark.parametrize("way", ["", "1"], ids=["in process", "isolated"])
def test_another_checkout_has_its_own_path_in_a_file(tmp_path: Path, program: Program, way: str) -> None:
    for folder in ("one", "two"):
        script = tmp_path / folder / "run.py"
        script.parent.mkdir()
        (script.parent / "pyproject.toml").write_text("")
        script.write_text(_HEAD + _MAKES_A_FILE)
        for _ in range(2):
            assert program(script, CACHEC_DIR=str(tmp_path / "store"), CACHEC_ISOLATED=way).strip() == str(script)


@pytest.mark.parametrize("edit", ["data.txt", "sub/data.txt"])
def test_a_file_that_a_stage_reads_there_still_counts(tmp_path: Path, program: Program, edit: str) -> None:
    store = str(tmp_path / "store")
    script = _write(tmp_path / "one", list(PLACES.values()))
    before = json.loads(program(script, CACHEC_DIR=store))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "two" / edit).write_text("other")
    after = json.loads(program(tmp_path / "two/sub/run.py", CACHEC_DIR=store))
    changed = {value for (old, _), (value, _) in zip(before, after, strict=True) if old != value}
    assert changed == {repr("other")}
    assert {value for value, reason in after if reason == "miss:dependency-changed"} == {repr("other")}
