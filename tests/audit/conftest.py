"""What the tests of the audit share: an empty folder with a small tool, and `cachec audit` in this process."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cachec.audit.findings import Audit
from cachec.audit.look import audit
from tests.needs import need


class Auditor:
    """Runs audits in the current folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *line: object, options: Sequence[str] = ()) -> Audit:
        """One audit."""
        return audit([*options, "--", *map(str, line)])

    def problems(self, *line: object, options: Sequence[str] = ()) -> list[tuple[str, str]]:
        """(kind, path below the folder) of each problem."""
        return [(each.kind, self.shown(each.path)) for each in self.run(*line, options=options).problems]

    def shown(self, path: str) -> str:
        """A path, short."""
        return path.removeprefix(f"{self.folder}/")

    def tool(self, name: str, text: str) -> str:
        """A shell script of that name in the folder; `./name`. Its shell's built-in words start no program."""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\nset -eu\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return f"./{name}"

    def python(self, name: str, text: str) -> str:
        """The same in Python."""
        path = self.folder / name
        path.write_text(f"#!{sys.executable}\n{text}\n")
        path.chmod(0o755)
        return f"./{name}"


#: Copies a file by the shell alone: `copy FROM TO`.
COPY = 'while IFS= read -r line; do echo "$line"; done < "$1" > "$2"'


@pytest.fixture
def auditor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Auditor:
    need("strace")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "in.txt").write_text("model\n")
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("CACHEC_")]:
        monkeypatch.delenv(name)
    for name in ("PWD", "LD_LIBRARY_PATH", "CPATH", "SOURCE_DATE_EPOCH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("CACHEC_SERVER", "off")
    return Auditor(folder)
