"""``cachec verify --recompute``: entries compiled again from their recipes."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import cachec
from cachec.cli import main
from cachec.store.store import Store

PROJECT = '''
"""Stages whose second run ends otherwise, as it is in the main thread."""

import os
import sys
import threading
import time
from pathlib import Path

import cachec

cache = cachec.Cache()


@cache.stage
def same(number: int, source: Path) -> bytes:
    return f"{number} {source.read_text()}".encode()


@cache.stage
def noisy(number: int) -> bytes:
    return str(time.time_ns()).encode()


@cache.stage
def failing(number: int) -> bytes:
    if threading.current_thread().name == "MainThread":
        raise ValueError(f"no {number}")
    return b"first"


@cache.stage
def dying(number: int) -> bytes:
    if threading.current_thread().name == "MainThread":
        os._exit(7)
    return b"first"


@cache.stage
def total(weights: cachec.WeightSet) -> bytes:
    return repr(sum(float(each.read().sum()) for each in weights.values())).encode()


@cache.stage
def shapes(weights: cachec.WeightSet) -> bytes:
    return repr([each.shape for each in weights.specs.values()]).encode()


@cache.stage(ignore=["left_out"])
def ignoring(number: int, left_out: object) -> bytes:
    return b"made"


@cache.stage(deterministic=False)
def unlike(number: int) -> cachec.File:
    with cachec.scratch() as folder:
        (folder / "o").write_text(str(time.time_ns()))
        return cachec.File(folder / "o", kind="unknown:x")


@cache.stage
async def later(number: int) -> bytes:
    return b"later"
'''

SCRIPT = """
import sys
import cachec

cache = cachec.Cache()
LINE = "import sys; open('o', 'w').write({})"

@cache.stage
def upper(text: str) -> cachec.File:
    with cachec.scratch() as folder:
        cachec.run([sys.executable, "-c", LINE.format(text)], cwd=folder, outputs=["o"])
        return cachec.File(folder / "o")

upper("'a'")
upper("__import__('os').urandom(4).hex()")
"""


class Project:
    """The stages, and the command on their store."""

    def __init__(self, folder: Path, module: ModuleType) -> None:
        self.folder, self.module = folder, module

    def first(self, name: str, *args: Any) -> str:
        """Run a stage for the first time, in a thread of its own; its key."""
        ended: list[cachec.Outcome] = []

        def run() -> None:
            ended.append(getattr(self.module, name).call(*args)[1])

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert ended[0].stored, ended[0]
        return ended[0].key

    def first_later(self) -> str:
        """The same of the stage that is an ``async def``."""
        _, outcome = asyncio.run(self.module.later.call(1))
        return str(outcome.key)

    def verified(self, *args: str, code: int) -> Any:
        result = CliRunner().invoke(main, ["verify", "--recompute", "20", "--path", "src", *args, "--json"])
        assert result.exit_code == code, (result.output, result.exception)
        return json.loads(result.stdout)

    def keys(self) -> set[str]:
        return {entry.key for entry in Store(self.folder / "store").entries()}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("CACHEC_LOG", "off")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "verify_project.py").write_text(PROJECT)
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    importlib.invalidate_caches()
    sys.modules.pop("verify_project", None)
    yield Project(tmp_path, importlib.import_module("verify_project"))
    sys.modules.pop("verify_project", None)


def test_what_differs_is_put_away_with_a_reproducer(project: Project, tmp_path: Path) -> None:
    (tmp_path / "source").write_text("text")
    same, noisy = project.first("same", 3, tmp_path / "source"), project.first("noisy", 1)
    document = project.verified("-o", "found", code=1)
    ended = {each["key"]: each for each in document["recomputed"]}
    assert {key: each["result"] for key, each in ended.items()} == {same: "same", noisy: "differs"}
    assert "other bytes" in ended[noisy]["words"]
    assert Path(ended[noisy]["reproducer"]) == Path("found", f"verify_project.noisy-{noisy[:12]}.zip")
    assert Path(ended[noisy]["reproducer"]).is_file()
    assert project.keys() == {same}
    assert project.verified(code=0)["recomputed"] == [{**ended[same]}]
    assert json.loads(CliRunner().invoke(main, ["stats", "--json"]).stdout)["calls"] == 2  # it is no call of anybody's


@pytest.mark.long
def test_every_way_to_end(project: Project, tmp_path: Path) -> None:
    weights = cachec.WeightSet.from_arrays({"a": np.ones(3, np.float32)})
    keys = {
        "same": project.first("shapes", weights),
        "later": project.first_later(),
        "failing": project.first("failing", 1),
        "dying": project.first("dying", 1),
        "reads": project.first("total", weights),
        "ignoring": project.first("ignoring", 1, object()),
        "unlike": project.first("unlike", 1),
    }
    document = project.verified("-o", "found", code=1)
    ended = {each["key"]: (each["result"], each["words"]) for each in document["recomputed"]}
    assert ended[keys["same"]][0] == ended[keys["later"]][0] == "same"
    assert ended[keys["failing"]] == ("failed", "ValueError: no 1")
    assert ended[keys["dying"]][1].startswith("its process ended with 7")
    assert len(ended) == 4
    assert "its run read bytes of weights" in document["skipped"]
    assert any("no plugin is named 'unknown'" in why for why in document["skipped"])
    assert any("left_out" in why for why in document["skipped"])
    assert project.keys() == set(keys.values())  # who fails is not known to be wrong
    source = tmp_path / "src" / "verify_project.py"
    source.write_text(PROJECT.replace("repr([each", "str([each"))
    again = project.verified("-o", "found", code=1)
    assert keys["same"] not in {each["key"] for each in again["recomputed"]}
    assert any("another key now" in why for why in again["skipped"])


@pytest.mark.long
def test_the_commands_of_a_script(project: Project, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, tmp_path / "script.py"], check=True, env=environ)
    document = project.verified("-o", "found", code=1)
    assert sorted(each["result"] for each in document["recomputed"]) == ["differs", "same"]
    (left,) = project.keys()
    assert left == next(each["key"] for each in document["recomputed"] if each["result"] == "same")


def test_nothing_can_be_compiled_again(project: Project) -> None:
    assert Store(project.folder / "store").invalidate(project.first_later())
    assert project.verified(code=0)["recomputed"] == []
