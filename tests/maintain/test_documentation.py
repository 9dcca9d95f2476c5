"""The commands and the code of docs/maintenance.md, run as they stand there."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import cachec
from cachec.cli import main
from cachec.maintain.selector import Selector
from tests.parts import option, tool

from .conftest import DAY, Yard, key_of

TEXT = (Path(__file__).parents[2] / "docs" / "maintenance.md").read_text()

PINNED, OLD, CUDA, NIGHTLY, UNUSED = ("3fa9c2" + key_of(1)[6:], *map(key_of, range(2, 6)))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def run(folder: Path, line: str) -> str:
    """Runs ``cachec ... | cachec ...``."""
    output = "y\n"  # where it asks
    for command in line.split(" | "):
        words = shlex.split(command, comments=True)
        assert words[0] == "cachec", line
        result = CliRunner().invoke(main, ["--dir", str(folder), *words[1:]], input=output)
        assert result.exit_code == 0, (line, result.output, result.exception)
        output = result.stdout
    return output


@pytest.fixture
def store(tmp_path: Path) -> Yard:
    yard = Yard(tmp_path / "store", now=time.time())
    yard.publish(PINNED, tags=("release",))
    yard.publish(OLD, stage="demo.lower", parts=(tool("jaxlib", "0.9.1"),), ago=40 * DAY)
    yard.publish(CUDA, stage="demo.lower", parts=(option("target", "'cuda'"),))
    yard.publish(NIGHTLY, tags=("nightly",))
    yard.publish(UNUSED, ago=40 * DAY)
    yard.store.release()
    return yard


def test_commands(store: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("cachec.cli.cmd_invalidate.sys", terminal)
    lines = [line[2:] for block in blocks("console") for line in block.split("\n") if line.startswith("$ ")]
    said = {line.partition(" #")[0].strip(): run(store.folder, line) for line in lines}
    assert len(said) == len(lines) == 11
    assert "no entries" in said['cachec ls --tool "jaxlib==0.9*" --newer-than 7d']
    assert CUDA[:12] in said["cachec invalidate --stage lower --option target=cuda --dry-run"]
    assert OLD[:12] in said["cachec invalidate --stale"]  # there is no such jaxlib
    assert said["cachec pin"].split() == ["key", PINNED[:12], "tag", "release"]
    assert "release" not in said["cachec pin --remove --tag release"]
    assert json.loads(said["cachec gc --older-than 30d --json"])["entries"] == 1
    assert store.keys() == {PINNED, CUDA}


def test_code(store: Yard, capsys: pytest.CaptureFixture[str]) -> None:
    cache = cachec.Cache(store.folder, log="off")
    (code,) = blocks("python")
    exec(code, {"cache": cache})
    assert capsys.readouterr().out.split() == ["1", "8192", "1.0"]
    assert store.keys() == {PINNED, CUDA, NIGHTLY, UNUSED}


def test_every_selector_is_in_the_table() -> None:
    options = {
        option.removeprefix("--")
        for command in ("ls", "invalidate")
        for parameter in main.get_command(None, command).params  # type: ignore[arg-type,union-attr]
        for option in parameter.opts
    }
    fields = {name.removesuffix("s").replace("_", "-") for name in Selector.__struct_fields__} - {"key"}
    assert fields <= options
    documented = set(re.findall(r"`--([a-z-]+)", "".join(re.findall(r"^\| `.*$", TEXT, re.MULTILINE))))
    assert documented == fields | {"stdin"}


def test_every_row_of_the_index_is_in_the_table(store: Yard) -> None:
    store.maintainer.pins.add("tag", "x")
    store.maintainer.pins.add("key", PINNED)
    store.age()
    store.maintainer.collect(limit=1)
    kinds = {name.partition(":")[0] for name, _ in store.store.index.rows("")} - {"entry", "recent", "digest"}
    assert kinds == {"near", "summary", "facts", "gc", "usage"}
    of_all = {name.rpartition(":default:")[0] or name for name in store.store.index.keys(prefix="store:")}
    assert of_all == {"store:pin"}
    for kind in kinds | {"condemned"} | {each.partition(":")[0] for each in of_all}:
        assert f"| `{kind}:" in TEXT
