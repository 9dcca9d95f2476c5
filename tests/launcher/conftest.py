"""What the tests of the launcher share: command lines in a folder of their own, with a store of their own."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cachec.base import fsio
from cachec.commands import traced_run
from cachec.events import read_log
from cachec.key.tools.environment import LOCALE
from cachec.launcher import client, direct, execute, result
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
echo "$PPID" > "$RUNS.parent"
[ -n "$FAKE_EXIT" ] && { echo "bad input" >&2; exit "$FAKE_EXIT"; }
{ cat "$in"; echo "flags:$flags opt:$FAKE_OPT hidden:$FAKE_HIDDEN"; [ -n "$in2" ] && cat "$in2"; } > "$out"
echo "compiled"
echo "warning: fake" >&2
exit 0
"""

#: Its adapter.
FAKECC_ADAPTER = """
match = ["fakecc"]

flags = [
  { names = ["-o"], takes = ["next"], is = "output" },
  { names = ["-l"], takes = ["next"], is = "value" },
  { names = ["--print"], is = "plain" },
  { names = ["--server"], is = "plain" },
]

[environment]
keyed = ["FAKE_OPT", "FAKE_EXIT"]
passed = ["RUNS", "PYTHON*"]
"""


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
        self.runs = folder.parent / ".cache" / "runs"
        self._capfd = capfd

    def run(self, *line: object, options: Sequence[str] = ()) -> Ran:
        """The whole road. What was written before is older, by the clock of the kernel."""
        wait_for_clock()
        self._capfd.readouterr()
        code = execute.main([*options, "--", *map(str, line)])
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
    (tmp_path / ".cache").mkdir()  # what is written below it is no side effect
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
    monkeypatch.setenv("RUNS", str(tmp_path / ".cache" / "runs"))

    def refuse(program: str, argv: Sequence[str], stdin: int | None) -> int:
        result.say(f"error: {' '.join(argv)}")  # the command is passed through: what would be executed
        return 2

    monkeypatch.setattr(result, "pass_through", refuse)
    return Launcher(folder, capfd)


#: `cachec` as a script in a folder of its own. How long a server may take is the machine's business.
SCRIPT = """#!{python} -P
import sys
from cachec.launcher import client
client.PATIENCE = 60.0
{also}
from cachec.__main__ import main
sys.exit(main())
"""


class Servers:
    """`cachec` as a process that may leave servers behind, and those servers."""

    def __init__(self, launcher: Launcher) -> None:
        self.script = launcher.folder.parent / "tools" / "cachec"
        self.script.parent.mkdir()
        self.say("")
        self.script.chmod(0o755)
        self.folder = Path(client.server_folder(os.environ, os.getcwd()))

    def say(self, also: str) -> None:
        """Write the script, with one more line."""
        self.script.write_text(SCRIPT.format(python=sys.executable, also=also))

    def call(self, *line: object, **how: Any) -> subprocess.CompletedProcess[bytes]:
        """One process."""
        return subprocess.run([self.script, "exec", "--", *map(str, line)], capture_output=True, check=False, **how)

    def found(self) -> dict[Path, int]:
        """Socket -> process number of the servers that answer."""
        servers: dict[Path, int] = {}
        try:
            folder = client.open_own(os.fspath(self.folder))
        except OSError:
            return servers  # none is asked there
        with fsio.closing(folder) as opened:
            for path in self.folder.glob("*"):
                try:
                    asking, servers[path] = client.connect(opened, path.name)
                except OSError:
                    continue
                asking.settimeout(60)
                asking.shutdown(socket.SHUT_WR)
                try:
                    asking.recv(1)  # until its child is there, which finds no request
                except ConnectionResetError:
                    del servers[path]  # it has just ended
                asking.close()
        return servers

    def ready(self, seconds: float = 120.0) -> int:
        """The process number of the one server, once it answers."""
        end = time.monotonic() + seconds
        while not (found := self.found()):
            assert time.monotonic() < end, "no server has come to be there"
            time.sleep(0.01)
        (pid,) = found.values()
        return pid

    def stop(self) -> None:
        """End all of them."""
        for pid in self.found().values():
            with contextlib.suppress(ProcessLookupError), fsio.closing(os.pidfd_open(pid)) as held:
                signal.pidfd_send_signal(held, signal.SIGKILL)
                assert select.select([held], [], [], 60)[0]


@pytest.fixture
def servers(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """None is there yet, and none is left behind."""
    monkeypatch.delenv("CACHEC_SERVER")
    found = Servers(launcher)
    yield found
    found.stop()


def need(*tools: str) -> pytest.MarkDecorator:
    """Skip where one of the tools is not installed; where CI runs it the test fails then."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing) and not os.environ.get("CI"), reason=f"not installed: {', '.join(missing)}")


def wait_for_clock() -> None:
    """Let what was written be older than what is run next: an input newer than that counts as changed."""
    time.sleep(1.5 * traced_run._CLOCK_SECONDS)


def write(path: str, text: str | bytes) -> Path:
    """A file in the current folder, with its folders."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(text.encode() if isinstance(text, str) else text)
    return place
