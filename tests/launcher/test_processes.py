"""The launcher as a process: what it becomes, how it ends, and what it leaves when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.conftest import Launcher, Servers, write

_Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(launcher: Launcher) -> _Start:
    """Start `cachec exec` as a process of its own."""

    def start(*args: str, **how: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "cachec", "exec", *args],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **how,
        )

    return start


def _wait_for(path: Path, seconds: float = 60) -> str:
    end = time.monotonic() + seconds
    while not path.exists() or not path.read_text().strip():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)
    return path.read_text().strip()


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_hit_and_a_miss(launcher: Launcher, start: _Start) -> None:
    write("a.txt", "x")
    for _ in range(2):
        process = start("--", "fakecc", "a.txt", "-o", "a.out")
        assert (*process.communicate(), process.returncode) == ("compiled\n", "warning: fake\n", 0)
    assert launcher.reasons() == ["miss:new-input", "hit"]


def test_a_command_has_the_standard_input_and_the_variables_of_the_launcher(
    launcher: Launcher, start: _Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYTHING", "goes")
    process = start("--", "sh", "-c", "cat; echo $ANYTHING; kill -PIPE $$", stdin=subprocess.PIPE)
    assert process.communicate("typed\n")[0] == "typed\ngoes\n"
    assert process.returncode == -signal.SIGPIPE  # Python's own disposition is not inherited
    assert launcher.reasons() == ["error:stage-raised"]


def test_mode_off_passes_through(launcher: Launcher, start: _Start, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.txt", "x")
    monkeypatch.setenv("CACHEC_MODE", "off")
    monkeypatch.setenv("CACHEC_LOG", "miss")
    assert start("--", "fakecc", "a.txt", "-o", "a.out").communicate()[1] == "warning: fake\n"  # as it was asked
    assert launcher.reasons() == ["bypass:mode-off"]
    assert launcher.compiled() == 1


@pytest.mark.parametrize("mode", ["on", "off"])
def test_a_script_is_told_the_path_by_which_it_is_started(
    start: _Start, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    write("name.sh", "#!/bin/sh\necho $0\n")
    os.chmod("name.sh", 0o755)
    monkeypatch.setenv("CACHEC_MODE", mode)
    assert start("--", "./name.sh").communicate()[0] == "./name.sh\n"


def test_a_missing_tool(launcher: Launcher, start: _Start) -> None:
    process = start("--", "no-such-tool", "x")
    assert "'no-such-tool' is not an executable in PATH" in process.communicate()[1]
    assert process.returncode == 127


def test_wrong_use(launcher: Launcher, start: _Start) -> None:
    for args in ((), ("--", ""), ("--nope", "--", "sh")):
        process = start(*args)
        assert process.communicate()[1].startswith("cachec: error: ")
        assert process.returncode == 2


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.sampled
def test_signals_reach_the_compiler_which_decides(
    launcher: Launcher, start: _Start, number: signal.Signals, ends: bool
) -> None:
    """What it says and how it ends is passed on; where it ends well, that is no result of every run."""
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored by all that is started here, as under nohup")
    trap = "echo cleaned > clean; echo bye; rm -f out; exit 9" if ends else "echo more >> out; exit"
    script = f"trap '{trap}' TERM INT HUP; echo half > out; echo $$ > pid; while :; do sleep 0.05; done"
    process = start("--output=out", "--output=pid", "--", "sh", "-c", script, start_new_session=True)
    child = int(_wait_for(Path("pid")))
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == ("bye\n" if ends else "")
    assert process.returncode == (9 if ends else 0)
    assert not launcher.last().stored
    assert Path("clean").exists() == ends
    assert Path("out").exists() != ends
    assert not _is_alive(child)


def test_a_killed_launcher_takes_the_compiler_with_it(launcher: Launcher, start: _Start) -> None:
    script = "trap 'rm -f out; exit 9' TERM; echo half > out; echo $$ > pid; while :; do sleep 0.05; done"
    process = start("--output=out", "--", "sh", "-c", script)
    child = int(_wait_for(Path("pid")))
    process.kill()
    process.communicate(timeout=60)
    end = time.monotonic() + 60
    while _is_alive(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _is_alive(child)
    assert not Path("out").exists()
    assert launcher.reasons() == []


@pytest.mark.parametrize(
    "number",
    [
        *(signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE),
        *(signal.SIGILL, signal.SIGUSR1, signal.SIGALRM, signal.SIGXCPU, signal.SIGPIPE, signal.SIGRTMIN),
    ],
)
@pytest.mark.sampled
def test_a_compiler_ended_by_a_signal(launcher: Launcher, start: _Start, number: int) -> None:
    script = f"import os, signal; signal.signal({number}, 0) if {number} != 9 else 0; print('said', flush=True); "
    process = start("--output=out", "--", sys.executable, "-c", f"{script}os.kill(os.getpid(), {number})")
    assert process.communicate()[0] == "said\n"
    assert process.returncode == -number
    assert launcher.reasons() == ["error:stage-raised"]
    assert list(launcher.folder.glob("core*")) == []


def test_a_reader_that_goes_away(launcher: Launcher) -> None:
    line = [sys.executable, "-m", "cachec", "exec", "--output=out", "--", "sh", "-c", ": > out; seq 100000"]
    for _ in range(2):
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.stderr is not None
            assert process.stderr.read() == b""
        assert process.returncode == -signal.SIGPIPE


@pytest.mark.parametrize("to", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize("server", ["auto", "off"])
def test_messages_that_can_not_be_written_do_not_double_the_result(servers: Servers, server: str, to: str) -> None:
    """Where standard error is closed or full the command runs once more, to say so as it does."""
    line = ["fakecc", "a.txt", "-o", "a.out"]
    write("a.txt", "x")
    environ = {**os.environ, "CACHEC_SERVER": server}
    in_shell = ["sh", "-c", f'exec "$@" {to}', "sh"]
    bare = subprocess.run([*in_shell, *line], capture_output=True, check=False)
    for _ in range(3):  # a miss, a hit, and one of a memo
        done = subprocess.run(
            [*in_shell, servers.script, "exec", "--", *line], capture_output=True, check=False, env=environ
        )
        assert (done.returncode, done.stdout) == (bare.returncode, b"compiled\n")
        if server == "auto" and to != "2>&-":  # where it is closed none is asked
            servers.ready()


def test_what_is_closed_stays_closed_for_the_command(launcher: Launcher) -> None:
    """SQLite puts /dev/null in the place of the first three descriptors, where nothing can be written to it."""
    tell = ": > out; echo said >&2; test -e /proc/$$/fd/2 && echo there >> seen; :"
    line = [sys.executable, "-m", "cachec", "exec", "--output=out", "--", "sh", "-c", tell]
    assert subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *line], check=False).returncode == 0
    assert Path("seen").read_text() == "there\n"  # as it ran for its result, and not when it said so


def test_a_missing_tool_where_nobody_can_be_told(launcher: Launcher) -> None:
    for to in ("2>&-", "2>/dev/full"):
        line = [sys.executable, "-m", "cachec", "exec", "--", "nonesuch"]
        assert subprocess.run(["sh", "-c", f'exec "$@" {to}', "sh", *line], check=False).returncode == 127


@pytest.mark.parametrize("stored", [False, True])
def test_a_reader_that_does_not_wait(launcher: Launcher, stored: bool) -> None:
    """Who shares the stream may have set O_NONBLOCK: nothing is lost, and nothing is said twice."""
    line = [sys.executable, "-m", "cachec", "exec", "--output=out", "--", "sh", "-c", ": > out; seq 100000"]
    if stored:
        subprocess.run(line, stdout=subprocess.DEVNULL, check=True)
    read, write_end = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(write_end, False)
    with subprocess.Popen(line, stdout=write_end) as process, os.fdopen(read, "rb") as stream:
        os.close(write_end)
        assert stream.read() == b"".join(b"%d\n" % number for number in range(1, 100001))
        assert process.wait() == 0


@pytest.mark.long
def test_many_at_once_compile_each_thing_once(launcher: Launcher, start: _Start) -> None:
    for number in range(3):
        write(f"{number}.txt", f"x{number}")
    processes = [start("--", "fakecc", f"{n % 3}.txt", "-o", f"{n % 3}.out") for n in range(6)]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert launcher.compiled() == 3
    assert sorted(reason.partition(":")[0] for reason in launcher.reasons()) == ["hit"] * 3 + ["miss"] * 3
    assert {os.stat(f"{n}.out").st_size for n in range(3)} == {os.stat("0.out").st_size}


@pytest.mark.parametrize("where", ["cachec.launcher.direct.answer", "cachec.launcher.client.ask"])
def test_an_interrupt_before_the_compiler_runs(launcher: Launcher, where: str) -> None:
    """While it still imports, say: it ends by the signal, without a word."""
    module, _, name = where.rpartition(".")
    code = (
        f"import os, signal, sys, {module} as module\n"
        "from cachec.__main__ import main\n"
        f"module.{name} = lambda _args: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.argv[1:] = ['exec', '--', 'true']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")
