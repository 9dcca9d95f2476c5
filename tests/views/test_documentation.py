"""The commands of docs/seeing.md, run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from cachec.cli import main
from tests.maintain.conftest import Yard

TEXT = (Path(__file__).parents[2] / "docs" / "seeing.md").read_text()
LINES = [
    line[2:]
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    for line in block.split("\n")
    if line.startswith("$ ")
]


@pytest.mark.parametrize("line", LINES)
def test_commands(yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(line, comments=True)
    assert program == "cachec"
    result = CliRunner().invoke(main, ["--dir", str(yard.folder), *words])
    assert result.exit_code == 0, (result.output, result.exception)
    named = words[words.index("-o") + 1] if "-o" in words else ""
    assert not named or os.path.getsize(named)
