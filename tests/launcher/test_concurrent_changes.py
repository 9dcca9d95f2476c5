"""Files that others change, add or move while a command runs: its result is not stored."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from cachec.launcher import traced_command
from tests.launcher.conftest import Launcher, write

#: `incc OUT FOLDER...`: the first `h.h`, what that names, and whether there is an `asked.h`.
_INCC = """#!/bin/sh
out=$1; shift
for each; do [ -f "$each/h.h" ] && { header="$each/h.h"; break; }; done
read -r other < "$header"
cat "$header" "$other" > "$out"
[ -f asked.h ] && echo asked >> "$out"
exit 0
"""


@pytest.fixture
def includes(launcher: Launcher, tmp_path: Path) -> Launcher:
    """`incc` in PATH; folders `one` and `two` with a header, `none` without, and a link `now` that leads to `one`."""
    tool = tmp_path / "bin" / "incc"
    tool.write_text(_INCC)
    tool.chmod(0o755)
    for name in ("one", "two"):
        write(f"{name}/h.h", f"{name}.txt\n")
        write(f"{name}.txt", f"first {name}\n")
    Path("none").mkdir()
    Path("now").symlink_to("one")
    return launcher


def _run(launcher: Launcher, folders: str, meanwhile: str) -> None:
    """Run the command; ``meanwhile`` is done by another once it has read all, and before its files are digested."""
    run_traced = traced_command.run_traced

    def disturbed(*args: Any, **more: Any) -> Any:
        run = run_traced(*args, **more)
        subprocess.run(["sh", "-c", meanwhile], check=True)
        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traced_command, "run_traced", disturbed)
        assert launcher.run("incc", "out", *folders.split()).code == 0


def _is_right(launcher: Launcher, folders: str) -> bool:
    """Whether the launcher makes what the compiler does."""
    made = []
    for run in (lambda *line: launcher.run(*line).code, lambda *line: subprocess.call(line)):
        Path("out").unlink(missing_ok=True)
        assert run("incc", "out", *folders.split()) == 0
        made.append(Path("out").read_text())
    return made[0] == made[1]


@pytest.mark.parametrize(
    ("folders", "meanwhile"),
    [
        ("now", "ln -sfn two now"),
        ("none/../now", "ln -sfn two now"),
        ("none one", "cp two/h.h none/h.h"),
        ("none one", "mv two/h.h none/h.h"),
        ("one", "mv one old; mv two one; touch one"),
        ("one", "mv one back; mv two one; mv back two"),
        ("none one", "rmdir none; mv two none"),
        ("none one", "rmdir none; ln -s two none"),
        ("one", "touch asked.h"),
        ("one", "echo two.txt > one/h.h"),
    ],
)
def test_what_changed_while_it_ran(includes: Launcher, folders: str, meanwhile: str) -> None:
    _run(includes, folders, meanwhile)
    assert includes.last().reason.value == "bypass:input-changed-during-run"
    assert _is_right(includes, folders)
    assert _is_right(includes, folders)
    assert includes.last().hit


def test_what_changes_nothing(includes: Launcher) -> None:
    _run(includes, "none one new", "touch none/else.h; mkdir new; cp one/h.h new/else.h; cp one.txt b.txt")
    assert includes.last().stored
