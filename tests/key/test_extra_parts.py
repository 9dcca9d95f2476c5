"""The setting ``key_parts``: what its functions return is in every key, and nothing remembers an older answer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cachec
from cachec import config
from cachec.errors import ConfigError, PluginError
from cachec.events import read_log

MODULE = """
from pathlib import Path

DRIVER = Path(__file__).with_name("driver")


def version():
    return DRIVER.read_text()


def number():
    return 7
"""

PROGRAM = """
import sys
from pathlib import Path
import cachec

cache = cachec.Cache("store")


@cache.stage(isolated=bool(sys.argv[1]))
def double(number: int) -> int:
    return 2 * number


for version in "11221":
    Path("parts/driver").write_text(version)
    assert double(3) == 6
"""


class Driver:
    """The file that the key part of the tests reads."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "driver"
        self.install("1")

    def install(self, version: str) -> None:
        self._path.write_text(version)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "toy_part.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("CACHEC_KEY_PARTS", "toy_part:version")
    yield Driver(folder)
    sys.modules.pop("toy_part", None)


def outcomes(cache: cachec.Cache) -> list[str]:
    return [outcome.reason.value for outcome in read_log(cache.settings.dir)]


@pytest.mark.parametrize("isolated", [False, True])
def test_a_stage_follows_the_part(tmp_path: Path, driver: Driver, isolated: bool) -> None:
    (tmp_path / "main.py").write_text(PROGRAM)  # other tests leave in this process what no worker can be sent
    subprocess.run([sys.executable, "main.py", "x" * isolated], cwd=tmp_path, check=True)
    reasons = [outcome.reason.value for outcome in read_log(tmp_path / "store")]
    assert reasons == ["miss:first-run", "hit", "miss:ambient-changed", "hit", "hit"]


def test_a_command_follows_the_part(tmp_path: Path, driver: Driver) -> None:
    """A memo was written while there was no part, and would answer."""
    environ = {**os.environ, "CACHEC_DIR": str(tmp_path / "store"), "CACHEC_LOG": "all", "CACHEC_SERVER": "off"}
    (tmp_path / "text").write_text("text")

    def run(**variables: str) -> str:
        line = [sys.executable, "-m", "cachec", "exec", "--", "cat", "text"]
        done = subprocess.run(
            line, env={**environ, **variables}, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout == "text"
        return done.stderr

    run(CACHEC_KEY_PARTS="")
    assert " hit " in run(CACHEC_KEY_PARTS="")
    assert "ambient-changed" in run()
    assert " hit " in run()
    driver.install("2")
    assert "ambient-changed: ambient toy_part:version: 1 -> 2" in run()
    assert " hit " in run()


def test_a_part_that_changes_during_the_run_keeps_the_result_out(tmp_path: Path, driver: Driver) -> None:
    cache = cachec.Cache(tmp_path / "store")

    @cache.stage(ignore=["install"])
    def build(install: object) -> int:
        install("2")  # type: ignore[operator]
        return 1

    assert build(driver.install) == 1
    assert outcomes(cache) == ["bypass:input-changed-during-run"]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("toy_part:none", "AttributeError"),
        ("no_such_module:version", "No module named 'no_such_module'"),
        ("toy_part:number", "returned 7, expected a str"),
    ],
)
def test_a_part_that_fails_is_an_error(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch, target: str, words: str
) -> None:
    monkeypatch.setenv("CACHEC_KEY_PARTS", target)
    cache = cachec.Cache(tmp_path / "store")

    @cache.stage
    def double(number: int) -> int:
        return 2 * number

    with pytest.raises(PluginError, match=f"key_parts: {target} .*{words}"):
        double(3)


def test_the_file_of_a_project_names_no_functions(tmp_path: Path) -> None:
    (tmp_path / "cachec.toml").write_text('key_parts = ["toy_part:version"]\n')
    with pytest.raises(ConfigError, match="key_parts is not for the file of a project"):
        config.load(cwd=tmp_path)


@pytest.mark.parametrize("value", ["toy_part", "toy_part:", "os.system('x'):y", ":x", "a:b.c"])
def test_what_is_no_function_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("package.module:function")):
        config.load(environ={"CACHEC_KEY_PARTS": value})
