"""docs/launcher.md: its commands work, its adapter is one, and it names every outcome of a command that passes by."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cachec.launcher import adapters
from cachec.model import Reason
from tests.launcher.conftest import Launcher, write
from tests.needs import need

TEXT = (Path(__file__).parents[2] / "docs" / "launcher.md").read_text()


def test_the_commands_work(launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("clang-19")
    commands = [
        line.removeprefix("$ ")
        for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
    assert len(commands) == 2
    iree = Path(sys.executable).with_name("iree-compile")
    if not iree.exists():
        pytest.skip("not installed: iree-compile")
    (tmp_path / "bin" / "clang").symlink_to(shutil.which("clang-19") or "")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{iree.parent}:{os.environ['PATH']}")
    write("model.mlir", "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n")
    write("a.c", "int f(void) { return 1; }\n")
    for command in commands:
        program, *line = shlex.split(command)
        assert program == "cachec"
        for expected in ("miss:new-input", "hit"):
            subprocess.run([sys.executable, "-m", "cachec", *line], check=True)
            assert launcher.last().reason.value == expected, command


def test_the_adapter_is_one(launcher: Launcher) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    write("cachec.toml", text)
    adapter = next(adapters.every())
    assert adapter.matches("mycc-12")
    assert adapter.environment.keyed == ("MYCC_OPTIONS",)


def test_every_outcome_of_a_command_that_passes_by_is_there() -> None:
    # A command runs no code of stages, and no plugin speaks for it.
    of_python = {Reason.STALE_MEMO, Reason.UNNAMED_CODE, Reason.UNSUPPORTED_VERSION}
    for reason in Reason:
        if reason.kind == "bypass" and reason not in {Reason.MODE_OFF, *of_python}:
            assert f"`{reason.value}`" in TEXT, reason
