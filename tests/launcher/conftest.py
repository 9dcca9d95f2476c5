"""What the tests of the launcher share: command lines in a folder of their own, with a store of their own."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from cachec.errors import CachecError
from cachec.events import read_log
from cachec.key.tools.environment import LOCALE
from cachec.launcher import direct, full, running
from cachec.model import Outcome

#: A compiler: `fakecc IN -o OUT [-DX] ...` writes IN and its flags to OUT, and talks on both streams.
FAKECC = """#!/bin/sh
out=; in=; flags=
while [ $# -gt 0 ]; do
  case "$1" in
    -o) out="$2"; shift ;;
    -l) in2="$2"; shift ;;
    -*) flags="$flags $1" ;;
    *) in="$1" ;;
  esac
  shift
done
echo "$in" >> "$RUNS"
[ -n "$FAKE_EXIT" ] && { echo "bad input" >&2; exit "$FAKE_EXIT"; }
{ cat "$in"; echo "flags:$flags opt:$FAKE_OPT hidden:$FAKE_HIDDEN"; [ -n "$in2" ] && cat "$in2"; } > "$out"
echo "compiled"
echo "warning: fake" >&2
exit 0
"""

#: Its adapter.
FAKECC_ADAPTER = """
match = ["fakecc"]
single = true

flags = [
  { names = ["-o"], takes = ["next"], is = "output" },
  { names = ["-l"], takes = ["next"], is = "input" },
  { names = ["--print"], is = "side-effect" },
  { names = ["--server"], is = "unknown" },
]

[environment]
keyed = ["FAKE_OPT", "FAKE_EXIT"]
passed = ["RUNS"]
"""


class Passed(CachecError):
    """The command was passed through: what would be executed instead of cachec."""


class Ran(NamedTuple):
    """How a command line ended."""

    code: int
    stdout: str
    stderr: str


class Launcher:
    """Runs ``cachec exec`` in this process, in the current folder."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.store = folder.parent / "store"
        self.runs = folder.parent / "runs"
        self._capfd = capfd

    def run(self, *line: object, options: Sequence[str] = ()) -> Ran:
        """The whole road."""
        self._capfd.readouterr()
        code = full.main([*options, "--", *map(str, line)])
        out, err = self._capfd.readouterr()
        return Ran(code, out, err)

    def direct(self, *line: object, options: Sequence[str] = ()) -> Ran | None:
        """The direct road alone; None where it has no answer."""
        self._capfd.readouterr()
        answered = direct.answer([*options, "--", *map(str, line)])
        out, err = self._capfd.readouterr()
        return Ran(0, out, err) if answered else None

    def outcomes(self) -> list[Outcome]:
        """All that were counted."""
        return list(read_log(self.store))

    def reasons(self) -> list[str]:
        """Their reasons."""
        return [outcome.reason.value for outcome in self.outcomes()]

    def last(self) -> Outcome:
        """The newest."""
        return self.outcomes()[-1]

    def compiled(self) -> int:
        """How often the fake compiler ran."""
        return len(self.runs.read_text().splitlines()) if self.runs.exists() else 0


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Launcher:
    """An empty folder with `fakecc` in PATH, whose adapter is in the configuration file above."""
    folder = tmp_path / "work"
    (tmp_path / "bin").mkdir()
    folder.mkdir()
    tool = tmp_path / "bin" / "fakecc"
    tool.write_text(FAKECC)
    tool.chmod(0o755)
    (tmp_path / "fakecc.toml").write_text(FAKECC_ADAPTER)
    (tmp_path / "cachec.toml").write_text('[adapters]\nfiles = ["fakecc.toml"]\n')
    monkeypatch.chdir(folder)
    for name in (*LOCALE, "PWD", "LD_LIBRARY_PATH", "FAKE_OPT", "FAKE_EXIT", "SOURCE_DATE_EPOCH", "CPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("CACHEC_LOG", "off")
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))

    def refuse(program: str, argv: Sequence[str], stdin: int | None) -> NoReturn:
        raise Passed(" ".join(argv))

    monkeypatch.setattr(full, "pass_through", refuse)
    return Launcher(folder, capfd)


def need(*tools: str) -> pytest.MarkDecorator:
    """Skip where one of the tools is not installed; where CI runs it the test fails then."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing) and not os.environ.get("CI"), reason=f"not installed: {', '.join(missing)}")


def wait_for_clock() -> None:
    """Let what was written be older than what is run next: a header newer than its compile counts as changed."""
    time.sleep(2 * running._CLOCK_SECONDS)


def write(path: str, text: str | bytes) -> Path:
    """A file in the current folder, with its folders."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(text.encode() if isinstance(text, str) else text)
    return place
