"""What the tests of build systems share: `cachec` in PATH, a store, and the outcomes of one build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from cachec.events import read_outcomes

PROJECTS = Path(__file__).parent / "projects"
ROOT = Path(__file__).parents[2]

#: What the installed console script does.
SCRIPT = f"#!{sys.executable}\nimport sys\nfrom cachec.__main__ import main\nsys.exit(main())\n"


class Build:
    """Copies of projects, built by commands whose outcomes are counted."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.environ = dict(environ)

    def project(self, source: Path, name: str = "project") -> Path:
        """A copy of a project's folder."""
        return shutil.copytree(source, self.folder / name, ignore=shutil.ignore_patterns("out", ".ninja_*"))

    def run(self, *line: object, cwd: Path, code: int = 0, **variables: str) -> str:
        """What a command prints on both streams."""
        done = subprocess.run(
            [str(word) for word in line],
            cwd=cwd,
            env=self.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def outcomes(self, *line: object, cwd: Path, **variables: str) -> Counter[str]:
        """How often each ``<reason> <stage>`` came in one build; ``miss`` without its reason."""
        stats = self.folder / "stats.jsonl"
        stats.unlink(missing_ok=True)
        self.run(*line, cwd=cwd, CACHEC_STATS_FILE=str(stats), **variables)
        found = read_outcomes(stats)
        counted = Counter(
            f"{'miss' if each.reason.kind == 'miss' else each.reason.value} {each.stage.removeprefix('exec:')}"
            for each in found
        )
        assert not found.damaged
        return counted


@pytest.fixture
def build(tmp_path: Path) -> Build:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "cachec"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CACHEC_", "MAKE"))}
    environ |= {
        "PATH": f"{script.parent}:{os.environ['PATH']}",
        "CACHEC_DIR": str(tmp_path / "store"),
        "CACHEC_LOG": "off",
        "CACHEC_SERVER": "off",
        "HOME": str(tmp_path),
    }
    for name in ("LD_LIBRARY_PATH", "PACK_LEVEL", "CPATH", "SOURCE_DATE_EPOCH", "PWD"):
        environ.pop(name, None)
    return Build(tmp_path, environ)
