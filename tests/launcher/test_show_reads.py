"""``cachec show KEY --reads``: what a traced command looked up, and whether it is the same now."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cachec.base.hashing import FileDigests
from cachec.cli import main
from cachec.key.trace_validation import ABSENT, EMPTY, Dependencies
from cachec.model import READ_KINDS, Read, Trace
from cachec.stage.lookup import describe_change
from cachec.store.store import Store
from cachec.verify.reads import place_of, result_of

from .conftest import Launcher

TOOL = """#!/bin/sh
read line < in.txt
read line < sub/data.txt
test -e missing.txt
test -e there.txt
for name in sub/*; do :; done
echo "$line" > out.txt
"""


def show(key: str, *options: str) -> Result:
    """Run ``cachec show``; no exception but a clean exit."""
    result = CliRunner().invoke(main, ["show", key, *options], prog_name="cachec")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def reads(key: str, *options: str) -> dict[str, Any]:
    """Return the newest run as JSON has it."""
    result = show(key, "--reads", "--json", *options)
    assert result.exit_code == 0, result.output
    run: dict[str, Any] = json.loads(result.stdout)["runs"][0]
    return run


def store_run(launcher: Launcher, tool: str = TOOL, folder: Path | None = None) -> str:
    """Run the tool in the current folder, or another; return its key."""
    folder = folder or launcher.folder
    (folder / "sub").mkdir(parents=True)
    for name in ("in.txt", "there.txt", "sub/data.txt"):
        (folder / name).write_text(f"{name}\n")
        os.utime(folder / name, (1, 1))
    (folder / "tool").write_text(tool)
    (folder / "tool").chmod(0o755)
    os.chdir(folder)
    time.sleep(0.1)  # a run whose inputs are as new as its start is not stored
    assert launcher.run("./tool").code == 0
    assert launcher.last().stored, launcher.last()
    return launcher.last().key


def publish(launcher: Launcher, key: str, *found: Read) -> None:
    """Store an entry of a stage with these reads."""
    store = Store(launcher.store)
    other = next(store.entries())
    trace = Trace(reads=found, value=other.traces[0].value, seconds=1.0, created=1.0)
    store.publish(key, "pkg.build", (), other.parts, trace)


@pytest.mark.parametrize("kind", sorted(READ_KINDS))
def test_every_kind_has_words(kind: str) -> None:
    found = Read(kind, "/a/b", "name", "1" * 64)
    assert result_of(found)
    assert result_of(Read(kind, "/a/b", "name", ABSENT)) == "not found"
    assert all(place_of(found))
    assert describe_change(found)


@pytest.mark.parametrize(
    ("read", "place"),
    [
        (Read("content", "/usr/include/stdio.h", "", ""), ("/usr/include", "stdio.h")),
        (Read("content", "in.txt", "", ""), (".", "in.txt")),
        (Read("content", "./in.txt", "", ""), (".", "in.txt")),
        (Read("lookup", "/", "", ""), ("/", ".")),
        (Read("lookup", ".", "", ""), (".", ".")),
        (Read("names", "sub", "", ""), ("sub", ".")),
        (Read("listing", "project:data", "", ""), ("project:data", ".")),
        (Read("content", "base_dir:src/a.c", "", ""), ("base_dir:src", "a.c")),
        (Read("content", "base_dir:a.c", "", ""), ("base_dir:", "a.c")),
        (Read("file", "argument 0:data/x", "", ""), ("argument 0:data", "x")),
        (Read("same", "", "a\0b", ""), ("paths that may be one file", "a, b")),
        (Read("weight", "params", "w", ""), ("weights of params", "w")),
        (Read("env", "HOME", "", ""), ("environment variables", "HOME")),
    ],
)
def test_places(read: Read, place: tuple[str, str]) -> None:
    assert place_of(read) == place


def test_whether_a_path_was_found(launcher: Launcher) -> None:
    """As the digests are made, not as they are read."""
    del launcher
    Path("file").write_text("")
    Path("loop").symlink_to("loop")
    dependencies = Dependencies(None, None)  # type: ignore[arg-type]  # look-ups need neither
    cases = {"file": "found", ".": "found", "none": "not found", "file/below": "not found", "loop": "failed (ELOOP)"}
    for where, result in cases.items():
        for flags in ("", "exists") if result != "failed (ELOOP)" else ("",):
            read = Read("lookup", where, flags, EMPTY)
            assert result_of(Read("lookup", where, flags, dependencies.present(read))) == result, (where, flags)
    link = Read("lookup", "loop", "link", EMPTY)
    assert result_of(Read("lookup", "loop", "link", dependencies.present(link))) == "found"
    assert result_of(Read("absent", "none", "", EMPTY)) == "not found"
    assert result_of(Read("there", "none", "", ABSENT)) == "not found"


def test_what_a_command_looked_up(launcher: Launcher) -> None:
    key = store_run(launcher)
    run = reads(key)
    assert run["holds"] is None
    found = {(each["folder"], each["where"]): each["result"] for each in run["reads"]}
    assert found[".", "in.txt"] == "read"
    assert found["sub", "sub/data.txt"] == "read"
    assert found[".", "missing.txt"] == "not found"
    assert found[".", "there.txt"] == "found"
    assert "listed" in found.values()
    assert {each["result"] for each in run["reads"] if each["where"].endswith("libc.so.6")} == {"read"}
    stored = Store(launcher.store).lookup(key)
    assert stored is not None
    assert len(run["reads"]) == len(stored.traces[0].reads)


EDITS: dict[str, tuple[Callable[[], object], set[str]]] = {
    "nothing": (lambda: None, set()),
    "other content": (lambda: Path("in.txt").write_text("other\n"), {"in.txt"}),
    "another time alone": (lambda: os.utime("in.txt", (9, 9)), set()),
    "another mode": (lambda: Path("in.txt").chmod(0o640), {"in.txt"}),
    "a file that was not there": (lambda: Path("missing.txt").write_text(""), {"missing.txt"}),
    "a file that is gone": (lambda: Path("there.txt").unlink(), {"there.txt"}),
    "another name in a folder": (lambda: Path("sub/more").write_text(""), {"sub"}),
    "a file that nothing looked up": (lambda: Path("unrelated").write_text(""), set()),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_has_changed_since(launcher: Launcher, edit: str) -> None:
    key = store_run(launcher)
    Path("out.txt").unlink()  # whether it was there counts
    change, wanted = EDITS[edit]
    change()
    os.chdir("/")  # the folder of the run is known
    run = reads(key, "--check")
    changed = {os.path.relpath(os.path.join(launcher.folder, each["where"]), launcher.folder) for each in run["reads"]
               if each["holds"] is False}  # fmt: skip
    assert changed == wanted
    assert run["holds"] is (not wanted)
    text = show(key, "--check").output
    assert ("nothing has changed" in text) == (not wanted)
    assert f"folder  {launcher.folder}" in text
    os.chdir(launcher.folder)
    assert launcher.run("./tool").code == 0
    assert launcher.last().hit == (not wanted)  # the same answer as of the call itself


def test_another_checkout(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (launcher.folder.parent / name for name in ("one", "other"))
    monkeypatch.setenv("CACHEC_BASE_DIR", str(one))
    key = store_run(launcher, folder=one)
    (one / "out.txt").unlink()
    shutil.copytree(one, other)
    (other / "in.txt").write_text("changed\n")
    assert reads(key, "--check")["holds"]
    monkeypatch.setenv("CACHEC_BASE_DIR", str(other))
    changed = {(each["kind"], each["where"]) for each in reads(key, "--check")["reads"] if not each["holds"]}
    assert changed == {("content", "in.txt"), ("folder", "base_dir")}  # whose path may be in the result


def test_text(launcher: Launcher) -> None:
    key = store_run(launcher, TOOL + "for n in 1 2 3 4 5 6 7 8 9; do test -e gone$n; test -e gone/$n; done\n:\n")
    text = show(key, "--reads").output
    assert "run 1: " in text
    assert " not found" in text
    assert "in.txt" not in text
    assert "--full" in text
    assert "  in.txt" in show(key, "--reads", "--full").output


def test_few_are_named_at_once(launcher: Launcher) -> None:
    store_run(launcher)
    key = "a" * 64
    publish(launcher, key, Read("lookup", "in\x1b[31m", "", EMPTY))
    text = show(key, "--reads").output
    assert "in" in text
    assert "\x1b" not in text
    assert "--full" not in text


def test_stages(launcher: Launcher) -> None:
    """Only a call of a stage can look up some of its reads."""
    store_run(launcher)
    file = Dependencies(None, FileDigests()).present(Read("file", os.path.abspath("in.txt"), "", ""))  # type: ignore[arg-type]
    found = {
        Read("file", "home:work/in.txt", "", file): True,
        Read("file", "home:work/there.txt", "", file): False,
        Read("absent", "nothing", "", EMPTY): True,
        Read("file", "argument 0:in.txt", "", file): None,
        Read("code", "live", "pkg:f", file): None,
        Read("weight", "params", "w", file): None,
    }
    publish(launcher, "b" * 64, *found)
    shown = {(each["kind"], each["where"]): each["holds"] for each in reads("b" * 64, "--check")["reads"]}
    assert shown == {(read.kind, read.where): holds for read, holds in found.items()}
    assert "3 lookups can be checked by a call alone" in show("b" * 64, "--check").output


def test_by_a_file(launcher: Launcher) -> None:
    """The entry that wrote a file is found by its content."""
    key = store_run(launcher)
    assert show("out.txt", "--reads").output == show(key, "--reads").output
    store = Store(launcher.store)
    entry = store.lookup(key)
    assert entry is not None
    store.publish("a" * 64, "pkg.build", (), entry.parts, entry.traces[0])
    result = show("out.txt", "--reads")
    assert result.exit_code == 0
    assert "the newest of 2 entries with this content; the others: " in result.stderr
    assert show("in.txt", "--reads").exit_code == 1


def test_wrong_use(launcher: Launcher) -> None:
    store_run(launcher)
    assert show("f" * 64, "--reads").exit_code == 1
