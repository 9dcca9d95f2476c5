"""A project with targets, in a folder of its own, and ways to warm it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from cachec import config, warm
from cachec.cli import main
from cachec.events import read_log
from cachec.model import Outcome

CLI = [sys.executable, "-c", "import sys; from cachec.cli import main; sys.exit(main())"]

STAGES = """
    import os, time
    import cachec

    cache = cachec.Cache()
    LOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runs.txt")

    def ran(what):
        fd = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{what}\\n".encode())
        os.close(fd)

    @cache.stage(ignore=["seconds"], depends=[])
    def double(n: int, seconds: float = 0.0) -> int:
        ran(f"double {n}")
        time.sleep(seconds)
        return 2 * n

    @cache.stage
    def word(text: str) -> str:
        ran(f"word {text}")
        return text.upper()

    def doubled(n, seconds=0.0):
        double(n, seconds)

    def both(n):
        word(str(double(n)))

    def nothing():
        pass

    def fails():
        print("some words")
        raise ValueError("no luck")

    async def awaited(n):
        double(n)
"""


class Project:
    """A folder with ``cachec.toml`` and ``stages.py``; ``runs`` says which stages ran in it."""

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder = folder
        self.store = store
        self.write("stages.py", STAGES)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def targets(self, text: str) -> None:
        self.write("cachec.toml", text)

    @property
    def runs(self) -> list[str]:
        log = self.folder / "runs.txt"
        return log.read_text().split("\n")[:-1] if log.exists() else []

    def log(self) -> list[Outcome]:
        return list(read_log(self.store))

    def warm(self, *wanted: str, **options: object) -> warm.Summary:
        declared = warm.load(self.folder)
        rows = warm.select(declared.rows, wanted)
        return warm.warm(rows, settings=config.load(), source=declared.path, **options)  # type: ignore[arg-type]

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``cachec`` in this process, whose folder and variables are the project's; an exception fails the test."""
        assert Path.cwd() == self.folder
        done = CliRunner().invoke(main, words, prog_name="cachec")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    def process(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The same in a process of its own."""
        return subprocess.run([*CLI, *words], cwd=self.folder, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An empty project; its store is set for this process and those that it starts."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "store"))
    return Project(folder, tmp_path / "store")


def statuses(summary: warm.Summary) -> dict[str, str]:
    """Row -> how it ended."""
    return {result.id: result.status.value for result in summary.results}
