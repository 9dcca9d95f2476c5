"""Children of the server that answer one request after another: hits, and runs without a fault, with nothing kept."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from cachec.base import fsio
from tests.launcher.conftest import Launcher, Servers, wait_for_clock, write

_OLD_ENOUGH = (
    "from cachec.launcher import server; server.SETTLE_SECONDS = -60\n"  # what the test made is as good as old
)


@pytest.fixture
def serving(launcher: Launcher, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Servers:
    """A server is there, and the command of ``_answered`` a hit."""
    monkeypatch.setenv("LC_CTYPE", "C.UTF-8")
    return _ready(servers)


def _ready(servers: Servers) -> Servers:
    write("a.txt", "x")
    assert servers.call("fakecc", "a.txt", "-o", "a.out").returncode == 0
    servers.ready()
    return servers


def _answered(launcher: Launcher, servers: Servers, text: str = "x", **how: object) -> int:
    """The process that answered the command, of no memo; it did so well."""
    shutil.rmtree(launcher.store / "direct", ignore_errors=True)
    write("a.txt", text)
    wait_for_clock()
    Path("a.out").unlink(missing_ok=True)
    done = servers.call("fakecc", "a.txt", "-o", "a.out", **how)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"compiled\n", b"warning: fake\n")
    assert Path("a.out").read_text().startswith(text)
    return launcher.last().pid


def _await_end(pid: int) -> None:
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with fsio.closing(held):
        assert select.select([held], [], [], 120)[0]


def test_one_answers_hits_and_misses(launcher: Launcher, serving: Servers) -> None:
    first = _answered(launcher, serving)
    assert [_answered(launcher, serving) for _ in range(3)] == [first] * 3
    assert first != serving.ready()
    assert launcher.last().hit
    there = _answered(launcher, serving)  # who asks whether the server is there gets an answer of one, too
    for number in range(3):
        assert _answered(launcher, serving, f"y{number}") == there
        assert not launcher.last().hit
        assert launcher.last().stored
    assert _answered(launcher, serving) == there
    assert launcher.last().hit
    assert launcher.compiled() == 4


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 3", 3), ("echo > more; echo > out.txt; touch in.txt", 0), ("sleep 100 >&- 2>&- & echo > out.txt", 0)],
    ids=["fails", "changes its input", "leaves a process"],
)
def test_one_ends_whose_run_had_a_fault(launcher: Launcher, serving: Servers, script: str, status: int) -> None:
    _answered(launcher, serving)
    write("in.txt", "x")
    line = ("--input=in.txt", "--output=out.txt", "--", "sh", "-c", script)
    done = subprocess.run([serving.script, "exec", *line], capture_output=True, check=False)
    assert done.returncode == status
    pid = launcher.last().pid  # of two that wait, either may have answered
    _await_end(pid)  # nobody sees what such a run left
    assert not launcher.last().stored
    assert _answered(launcher, serving) != pid


def test_those_that_come_before_there_is_a_server_wait_for_it(launcher: Launcher, servers: Servers) -> None:
    """One of them starts it. None imports and opens all that beside it."""
    started = []
    for number in range(4):
        write(f"{number}.txt", f"{number}")
        line = [servers.script, "exec", "--", "fakecc", f"{number}.txt", "-o", f"{number}.out"]
        started.append(subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    assert [process.wait(120) for process in started] == [0] * 4
    assert not {process.pid for process in started} & {outcome.pid for outcome in launcher.outcomes()}
    assert launcher.compiled() == 4


def test_one_that_waits_holds_nothing_of_a_request(launcher: Launcher, serving: Servers) -> None:
    pid = _answered(launcher, serving)
    assert _answered(launcher, serving) == pid  # so it waited, and waits again once this has its answer
    process = Path(f"/proc/{pid}")
    held = {os.readlink(each) for each in (process / "fd").iterdir() if each.is_symlink()}
    assert {place for place in held if not place.startswith("socket:")} == {os.devnull}
    assert os.readlink(process / "cwd") == "/"
    assert not [name for name in os.listdir(launcher.store / "leases") if name.startswith(f"{pid}-")]


def test_each_request_has_its_own_folder_variables_and_streams(
    launcher: Launcher, serving: Servers, tmp_path: Path
) -> None:
    pid = _answered(launcher, serving)
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("x")
    wait_for_clock()
    with (tmp_path / "told").open("wb") as told:
        line = [serving.script, "exec", "--", "fakecc", "a.txt", "-o", "a.out"]
        subprocess.run(line, cwd=other, stdout=told, stderr=told, check=True)
    assert launcher.last().pid == pid
    assert (other / "a.out").read_text() == Path("a.out").read_text()
    assert (tmp_path / "told").read_bytes() == b"compiled\nwarning: fake\n"
    assert _answered(launcher, serving, env={**os.environ, "FAKE_OPT": "new"}) == pid
    assert not launcher.last().hit
    assert "opt:new" in Path("a.out").read_text()


def test_each_request_has_its_own_folder_for_scratch_files(
    launcher: Launcher, servers: Servers, tmp_path: Path
) -> None:
    servers.say(
        "import os, tempfile\n"
        "from cachec.launcher import execute\n"
        "def conclude(*given, before=execute.conclude, **more):\n"
        "    print(tempfile.gettempdir(), file=open(os.environ['TOLD'], 'w')) if 'TOLD' in os.environ else None\n"
        "    return before(*given, **more)\n"
        "execute.conclude = conclude"
    )
    _ready(servers)
    pid = _answered(launcher, servers)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        told = {"TMPDIR": os.fspath(tmp_path / name), "TOLD": os.fspath(tmp_path / "told")}
        assert _answered(launcher, servers, env={**os.environ, **told}) == pid
        assert (tmp_path / "told").read_text() == f"{tmp_path / name}\n"


def test_one_is_left_where_a_module_was_imported(launcher: Launcher, servers: Servers) -> None:
    (servers.script.parent / "something.py").write_text("")
    servers.say(
        f"{_OLD_ENOUGH}sys.path.append({os.fspath(servers.script.parent)!r})\n"
        "from cachec.launcher import execute\n"
        "def conclude(*given, before=execute.conclude, **more):\n"
        "    if 'IMPORTS' in __import__('os').environ: import something\n"
        "    return before(*given, **more)\n"
        "execute.conclude = conclude"
    )
    _ready(servers)
    pid = _answered(launcher, servers)
    assert _answered(launcher, servers, env={**os.environ, "IMPORTS": "1"}) == pid
    _await_end(pid)
    assert _answered(launcher, servers) != pid


def test_one_whose_modules_changed_while_it_waited_answers_no_more(launcher: Launcher, servers: Servers) -> None:
    servers.say(f"{_OLD_ENOUGH}sys.path.append({os.fspath(servers.script.parent)!r})")
    _ready(servers)
    pid = _answered(launcher, servers)
    (servers.script.parent / "something.py").touch()
    assert _answered(launcher, servers) != pid  # by itself, or another server's
    _await_end(pid)


def test_one_that_was_killed_while_it_waited_is_followed(launcher: Launcher, serving: Servers) -> None:
    server = serving.ready()  # asked before: one that waits answers that, too, and ends with it
    pid = _answered(launcher, serving)
    os.kill(pid, signal.SIGKILL)
    _await_end(pid)
    assert _answered(launcher, serving) != pid
    assert serving.ready() == server


def test_those_that_wait_end_with_the_server(launcher: Launcher, serving: Servers) -> None:
    pid = _answered(launcher, serving)
    subprocess.run([serving.script, "server", "stop"], capture_output=True, check=True)
    _await_end(pid)
