"""Headers that change, come or move while the compiler runs: what it made is then no result of what is there now."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.launcher.conftest import Launcher, wait_for_clock, write

#: `incc IN -o OUT -IFOLDER...`: IN, the first `h.h`, what that names, and whether there is an `asked.h`; does
#: MEANWHILE once it has read that. With `-M` it says what it includes, and does BETWEEN.
_INCC = """#!/bin/sh
folders= only=
while [ $# -gt 0 ]; do
  case "$1" in
    -o) out="$2"; shift ;;
    -MF) named="$2"; shift ;;
    -I*) folders="$folders ${1#-I}" ;;
    -M) only=1 ;;
    -MD|-MMD) ;;
    *) in="$1" ;;
  esac
  shift
done
for each in $folders; do [ -f "$each/h.h" ] && { header="$each/h.h"; break; }; done
read -r other < "$header"
[ -n "$only$named" ] && echo "out: $in $header $other" > "${named:-out.d}"
[ -n "$only" ] && { eval "$BETWEEN"; exit 0; }
cat "$in" "$header" "$other" > "$out"
[ -f asked.h ] && echo asked >> "$out"
eval "$MEANWHILE"
exit 0
"""

_ADAPTER = """
[adapters.incc]
match = ["incc"]
includes = [".c"]
flags = [
  { names = ["-o"], takes = ["next"], is = "output" },
  { names = ["-I"], takes = ["joined"], is = "search" },
  { names = ["-MF"], takes = ["next"], is = "depfile" },
  { names = ["-MD"], is = "depfile-on" },
  { names = ["-MMD"], is = "depfile-short" },
]

[adapters.incc.environment]
passed = ["MEANWHILE", "BETWEEN"]
"""


@pytest.fixture
def includes(launcher: Launcher, tmp_path: Path) -> Launcher:
    """`incc` in PATH; folders `one` and `two` with a header, `none` without, and a link `now` that leads to `one`."""
    (tmp_path / "cachec.toml").write_text(_ADAPTER)
    tool = tmp_path / "bin" / "incc"
    tool.write_text(_INCC)
    tool.chmod(0o755)
    write("a.c", '#if __has_include("asked.h")\n')
    for name in ("one", "two"):
        write(f"{name}/h.h", f"{name}.txt\n")
        write(f"{name}.txt", f"first {name}\n")
    Path("none").mkdir()
    Path("now").symlink_to("one")
    wait_for_clock()
    return launcher


def _is_right(launcher: Launcher, *flags: str) -> bool:
    """Whether the launcher makes what the compiler does."""
    made = []
    wait_for_clock()
    for run in (lambda *line: launcher.run(*line).code, lambda *line: subprocess.call(line)):
        Path("out").unlink(missing_ok=True)
        assert run("incc", "a.c", "-o", "out", *flags) == 0
        made.append(Path("out").read_text())
    return made[0] == made[1]


@pytest.mark.parametrize(
    ("flags", "meanwhile"),
    [
        (["-Inow"], "ln -sfn two now"),
        (["-Inone/../now"], "ln -sfn two now"),
        (["-Inone", "-Ione"], "cp two/h.h none/h.h"),
        (["-Inone", "-Ione"], "mv two/h.h none/h.h"),
        (["-Ione"], "mv one old; mv two one"),
        (["-Ione"], "mv one old; mv two one; touch one"),
        (["-Inone", "-Ione"], "rmdir none; mv two none"),
        (["-Inone", "-Ione"], "rmdir none; ln -s two none"),
        (["-Ione"], "touch asked.h"),
    ],
)
def test_what_changed_while_it_ran(
    includes: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], meanwhile: str
) -> None:
    monkeypatch.setenv("MEANWHILE", meanwhile)
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    assert includes.run("incc", "a.c", "-o", "out", *flags).code == 0
    assert includes.last().reason.value == "bypass:input-changed-during-run"
    assert not os.listdir(tmp_path / "scratch")  # nor what is there until a process ends: a server's child runs no such
    monkeypatch.delenv("MEANWHILE")
    assert _is_right(includes, *flags)
    assert _is_right(includes, *flags)
    assert includes.last().hit


def test_folders_that_were_swapped_and_back(includes: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    os.rename("one", "back")
    os.rename("two", "one")
    os.rename("back", "two")
    wait_for_clock()
    monkeypatch.setenv("MEANWHILE", "mv one back; mv two one; mv back two")
    assert includes.run("incc", "a.c", "-o", "out", "-Ione").code == 0
    monkeypatch.delenv("MEANWHILE")
    assert _is_right(includes, "-Ione")


@pytest.mark.parametrize("what", ["touch none/else.h", "mkdir new; cp one/h.h new/else.h", "cp a.c b.c"])
def test_what_changes_nothing(includes: Launcher, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setenv("MEANWHILE", what)
    assert includes.run("incc", "a.c", "-o", "out", "-Inone", "-Ione", "-Inew").code == 0
    assert includes.last().stored


def test_a_header_that_changes_after_it_was_named(includes: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A depfile that leaves headers out is no list of what is included: the compiler is asked before it runs."""
    monkeypatch.setenv("BETWEEN", "echo two.txt > one/h.h; sleep 0.1")
    flags = ("-MMD", "-MF", "out.d", "-Ione")
    assert includes.run("incc", "a.c", "-o", "out", *flags).code == 0
    monkeypatch.delenv("BETWEEN")
    write("two.txt", "second two\n")
    assert _is_right(includes, *flags)
