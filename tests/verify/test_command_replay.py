"""``cachec verify --recompute``: commands of ``cachec exec`` run again in the folder of their files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cachec.cli import main
from cachec.launcher import execute
from cachec.store.store import Store
from tests.launcher.conftest import wait_for_clock
from tests.needs import need

#: Copies its input, and what COPIED of the environment says. Files beside `runs` make it do otherwise.
COPIES = """#!/bin/sh
printf x >> {runs}
cat "$1" > "$2" || exit 1
[ -z "$COPIED" ] || printf '%s' "$COPIED" >> "$2"
[ ! -e {runs}.noise ] || date +%N >> "$2"
[ ! -e {runs}.says ] || date +%N
[ ! -e {runs}.names ] || printf '%s' "$2" >> "$2"
"""


class Lines:
    """Commands in a folder, and the store that they are in."""

    def __init__(self, folder: Path, above: Path) -> None:
        self.folder, self.runs = folder, above / ".cache" / "runs"  # a folder whose files are no outputs
        self.runs.parent.mkdir()
        tool = above / "bin" / "copies"
        tool.parent.mkdir()
        tool.write_text(COPIES.format(runs=self.runs))
        tool.chmod(0o755)

    def run(self, *args: str) -> str:
        """Run it, which is a miss; the key of its entry."""
        wait_for_clock()
        before = self.keys()
        assert execute.conclude(args, {}) is not None
        (key,) = self.keys() - before
        return key

    def copy(self, *before: str) -> str:
        return self.run(*before, "--", "copies", "a", "o")

    def keys(self) -> set[str]:
        return {entry.key for entry in Store(os.environ["CACHEC_DIR"]).entries()}

    def verified(self, *, code: int = 0) -> Any:
        result = CliRunner().invoke(main, ["verify", "--recompute", "20", "-o", "found", "--json"])
        assert result.exit_code == code, (result.output, result.exception)
        return json.loads(result.stdout)

    def skipped(self) -> str:
        document = self.verified()
        assert document["recomputed"] == []
        (why,) = document["skipped"]
        return str(why)

    def set(self, what: str) -> None:
        Path(f"{self.runs}.{what}").touch()


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lines:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PWD", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("CACHEC_LOG", "off")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}", prepend=os.pathsep)
    monkeypatch.delenv("COPIED", raising=False)
    (folder / "a").write_text("text\n")
    return Lines(folder, tmp_path)


def test_it_runs_again_and_touches_nothing(lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another folder, with another environment: both are of the recipe."""
    monkeypatch.setenv("COPIED", "with this")
    key = lines.copy("--env", "COPIED")
    copied = os.environ["COPIED"]
    monkeypatch.delenv("COPIED")
    monkeypatch.setenv("OF_ANOTHER_SHELL", "this too")  # would count
    (lines.folder / "o").write_text("of somebody else")
    before = sorted(os.listdir(lines.folder))
    monkeypatch.chdir(tmp_path)
    assert "COPIED" in lines.skipped()  # its value is not stored
    monkeypatch.setenv("COPIED", copied)
    document = lines.verified()
    assert [(each["key"], each["result"]) for each in document["recomputed"]] == [(key, "same")]
    assert lines.runs.read_text() == "xx"
    assert (lines.folder / "o").read_text() == "of somebody else"
    assert sorted(os.listdir(lines.folder)) == before
    assert json.loads(CliRunner().invoke(main, ["stats", "--json"]).stdout)["calls"] == 1


@pytest.mark.parametrize(("what", "words"), [("noise", "has other bytes"), ("says", "something else on stdout")])
def test_what_differs_is_put_away(lines: Lines, what: str, words: str) -> None:
    lines.set(what)
    lines.copy()
    (ended,) = lines.verified(code=1)["recomputed"]
    assert (ended["result"], ended["reproducer"]) == ("differs", "")
    assert words in ended["words"]
    assert lines.keys() == set()


def test_an_input_that_changed_or_is_gone_is_named(lines: Lines) -> None:
    lines.copy()
    (lines.folder / "a").write_text("other")
    assert "a has other content" in lines.skipped()
    (lines.folder / "a").unlink()
    assert "a" in lines.skipped()
    assert lines.runs.read_text() == "x"
    shutil.rmtree(lines.folder)
    os.chdir("/")
    assert "can't be entered" in lines.skipped()


def test_what_can_not_be_compared_is_told(lines: Lines) -> None:
    lines.run("--", "sh", "-c", "cat a > o")
    assert "does not name o once" in lines.skipped()
    (lines.folder / "o").unlink()
    shutil.rmtree(os.environ["CACHEC_DIR"])
    lines.set("names")
    lines.copy()
    assert lines.skipped() == "its result holds the path that it is written to"


def test_a_tool_without_an_adapter_that_takes_no_other_place(lines: Lines) -> None:
    lines.run("--", "sh", "-c", '[ "$1" = o ] && cat a > "$1"', "x", "o")
    assert "ended with exit status 1 where it was to write to another place" in lines.skipped()


def test_below_a_base_folder_another_checkout_is_looked_at(
    lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEC_BASE_DIR", str(lines.folder))
    monkeypatch.setenv("ITS_TOOLS", f"{lines.folder}/tools")
    where = str(lines.folder)
    lines.run("--relocatable", "--", "copies", f"{where}/a", f"{where}/o")
    other = tmp_path / "other"
    shutil.move(lines.folder, other)
    monkeypatch.chdir(other)
    monkeypatch.delenv("CACHEC_BASE_DIR")
    monkeypatch.delenv("ITS_TOOLS")
    assert "set one here (CACHEC_BASE_DIR)" in lines.skipped()
    monkeypatch.setenv("CACHEC_BASE_DIR", str(other))
    assert "ITS_TOOLS" in lines.skipped()
    monkeypatch.setenv("ITS_TOOLS", f"{other}/tools")
    assert [each["result"] for each in lines.verified()["recomputed"]] == ["same"]


def test_a_compiler_with_headers(lines: Lines) -> None:
    need("clang-19")
    (lines.folder / "b.c").write_text('#include "h.h"\nint g(void) { return H; }\n')
    (lines.folder / "h.h").write_text("#define H 3\n")
    lines.run("--", "clang-19", "-g", "-c", "b.c", "-ob.o")
    assert [each["result"] for each in lines.verified()["recomputed"]] == ["same"]
    (lines.folder / "h.h").write_text("#define H 4\n")
    assert "h.h has other content" in lines.skipped()


def test_a_reproducer_of_it_is_shown_and_not_run(lines: Lines) -> None:
    key = lines.copy()
    run = CliRunner().invoke
    assert run(main, ["repro", key, "-o", "x.zip"]).exit_code == 0
    assert "cachec exec -- copies a o" in run(main, ["repro", "show", "x.zip"]).output
    done = run(main, ["repro", "run", "x.zip"])
    assert (done.exit_code, "verify --recompute" in done.output) == (2, True)
