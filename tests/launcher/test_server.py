"""The server of `cachec exec`: what it answers is what the process itself would, and without it nothing is missing."""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachec.base import fsio
from cachec.events import read_log
from cachec.launcher import client
from cachec.launcher.result import CommandResult, pack, unpack
from cachec.store.store import Store
from tests.launcher.conftest import Launcher, Servers, need, write

_LINE = ("fakecc", "a.txt", "-o", "a.out")


@pytest.fixture
def served(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Servers:
    """A server is there, and answers. The locale is named, as Python makes another of C for itself than for others."""
    monkeypatch.setenv("LC_CTYPE", "C.UTF-8")
    for number in range(10):
        write("first.txt", str(number))
        assert servers.call("fakecc", "first.txt", "-o", "first.out").returncode == 0
        with contextlib.suppress(AssertionError):  # it does not stay where a folder of modules has just changed
            servers.ready(12.0)
            return servers
    raise AssertionError("no server stays")


def _start(servers: Servers, *line: str, **how: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    return subprocess.Popen([servers.script, "exec", *line], **pipes)


def _is_served(launcher: Launcher, servers: Servers, *line: str, **how: Any) -> bool:
    """Whether the compiler was started by another process than the one that was called. It ended well."""
    process = _start(servers, "--", *(line or _LINE), **how)
    assert (*process.communicate(timeout=120), process.returncode) == (b"compiled\n", b"warning: fake\n", 0)
    return Path(f"{launcher.runs}.parent").read_text() != f"{process.pid}\n"


def _await_end(pid: int) -> None:
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([held], [], [], 120)[0]
    os.close(held)


# --- it is there, and goes


def test_the_first_miss_leaves_one_behind_that_answers_it_and_the_next(launcher: Launcher, servers: Servers) -> None:
    write("a.txt", "x")
    assert _is_served(launcher, servers)  # it returned: nothing holds its pipes
    pid = servers.ready()
    (place,) = servers.folder.iterdir()
    assert [path.stat().st_mode & 0o777 for path in (servers.folder, place)] == [0o700, 0o600]
    assert {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)} == {os.devnull}
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    write("a.txt", "y")
    assert _is_served(launcher, servers)
    assert launcher.reasons() == ["miss:new-input", "miss:file-changed"]
    servers.say("client.ask = None")
    assert servers.call(*_LINE).returncode == 0  # of a memo, as the process itself would have written it
    assert servers.ready() == pid


#: A line of the script that has a server say it in a FIFO when it ends by itself.
_SAYS_WHEN_IT_ENDS = """
from cachec.launcher import server
def run(*given, before=server._Server.run):
    before(*given)
    open({path!r}, "w").write("ended")
server._Server.run = run
"""


def _said(path: Path) -> str:
    return path.read_text()  # a FIFO: once somebody has written


def test_one_that_nobody_asks_ends(launcher: Launcher, servers: Servers, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "said")
    more = "server.IDLE_SECONDS = 0; server.CHECK_SECONDS = 0.01"
    servers.say(_SAYS_WHEN_IT_ENDS.format(path=os.fspath(tmp_path / "said")) + more)
    write("a.txt", "x")
    assert servers.call(*_LINE).returncode == 0
    assert _said(tmp_path / "said") == "ended"
    assert not any(servers.folder.iterdir())  # it took its socket along


def test_one_whose_socket_is_gone_ends(launcher: Launcher, servers: Servers) -> None:
    servers.say("from cachec.launcher import server; server.CHECK_SECONDS = 0.01")
    write("a.txt", "x")
    servers.call(*_LINE)
    pid = servers.ready()
    shutil.rmtree(launcher.store)
    _await_end(pid)


@pytest.mark.long
def test_one_whose_modules_changed_is_not_asked(launcher: Launcher, servers: Servers) -> None:
    folder = servers.script.parent
    servers.say(
        "from cachec.launcher import server; server.SETTLE_SECONDS = -60\n"  # what the test made is as good as old
        f"sys.path.append({os.fspath(folder)!r})"
    )
    write("a.txt", "x")
    servers.call(*_LINE)
    pid = servers.ready()
    for name in ("begun", "go"):
        os.mkfifo(name)
    going_on = _start(servers, "--output=out", "--", "sh", "-c", "echo > begun; read go < go; echo > out", "sh")
    assert Path("begun").read_text() == "\n"
    (folder / "something.py").touch()
    write("a.txt", "y")
    assert not _is_served(launcher, servers)
    _await_end(pid)
    write("a.txt", "z")
    servers.call(*_LINE)
    assert servers.ready() != pid  # whatever an older one still does
    os.kill(going_on.pid, signal.SIGKILL)
    going_on.communicate(timeout=120)


def test_one_is_not_left_behind_where_a_module_was_written_just_now(
    launcher: Launcher, servers: Servers, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "said")
    more = f"sys.path.append({os.fspath(servers.script.parent)!r})"
    servers.say(_SAYS_WHEN_IT_ENDS.format(path=os.fspath(tmp_path / "said")) + more)
    write("a.txt", "x")
    assert not _is_served(launcher, servers)
    assert _said(tmp_path / "said") == "ended"
    assert not any(servers.folder.iterdir())


@pytest.mark.parametrize("how", ["variable", "file", "python -m"])
@pytest.mark.sampled
def test_there_is_none_where_none_is_wanted(
    launcher: Launcher, served: Servers, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    settings = launcher.folder.parent / "cachec.toml"
    write("a.txt", "x")
    if how == "variable":
        monkeypatch.setenv("CACHEC_SERVER", "off")
    elif how == "file":
        settings.write_text('server = "off"\n' + settings.read_text())
    else:
        monkeypatch.setenv("PYTHONPATH", os.getcwd())
    assert not _is_served(launcher, served)
    served.stop()
    shutil.rmtree(served.folder)
    write("a.txt", "y")
    assert not _is_served(launcher, served)
    assert not served.folder.exists()


def test_it_is_seen_and_stopped_by_the_command_line(served: Servers) -> None:
    pid = served.ready()

    def told(*words: str) -> str:
        return subprocess.run([served.script, "server", *words], capture_output=True, text=True, check=True).stdout

    assert told() == f"{pid} waits at {next(served.folder.iterdir())}\n"
    assert told("stop") == f"{pid} stopped\n"
    _await_end(pid)
    words = "no server: the next miss of cachec exec starts one\n"
    assert told() == words
    assert told("stop") == words
    assert not any(served.folder.iterdir())


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("CACHEC_SERVER=off", "the setting server is off"),
        ("3</dev/null", "the caller hands on open files beside the standard streams (descriptor 3; see /proc/self/fd)"),
        ('PYTHONPATH="$PYTHONPATH:$PWD"', "Python searches the current folder for modules (python -m, PYTHONPATH)"),
        ("strace -f -o /dev/null", "another program traces this process, or there is no /proc"),
    ],
)
def test_the_command_line_says_what_keeps_a_server_away(
    launcher: Launcher, servers: Servers, how: str, words: str
) -> None:
    if how.startswith("strace"):
        need("strace")
    write("a.txt", "x")
    before, after = (how, "") if "<" not in how else ("", how)
    for command in ("exec -- cp a.txt b.txt", "server"):
        line = ["sh", "-c", f'{before} "$0" {command} {after}', servers.script]
        said = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert said == f"no server: {words}\n"
    assert not servers.found()


# --- the same, with it and without it

_Case = Callable[[Servers], object]


def _plain(*line: str, **how: Any) -> _Case:
    def case(servers: Servers) -> object:
        process = _start(servers, *line, **{"stdin": subprocess.DEVNULL, **how})
        out, err = process.communicate(timeout=120)
        return process.returncode, out, re.sub(rb"[\d.]+ m?s\b", b"N s", err)

    return case


def _in_shell(script: str) -> _Case:
    def case(servers: Servers) -> object:
        line = ["sh", "-c", script, os.fspath(servers.script), *_LINE]
        done = subprocess.run(line, capture_output=True, check=False, timeout=120)
        return done.returncode, done.stdout, done.stderr

    return case


def _ignore_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _typed(*line: str) -> _Case:
    def case(servers: Servers) -> object:
        process = _start(servers, *line, stdin=subprocess.PIPE)
        return *process.communicate(b"typed\n", timeout=120), process.returncode

    return case


def _jobserver(servers: Servers) -> object:
    """What make hands to its jobs, a command that is passed through can take a token of."""
    ours, theirs = os.pipe()
    os.write(theirs, b"+")
    line = ("--", "sh", "-c", f"head -c 1 <&{ours}")
    try:
        return _plain(*line, pass_fds=[ours])(servers)
    finally:
        os.close(ours)
        os.close(theirs)


def _without_a_memo(servers: Servers) -> object:
    shutil.rmtree(servers.folder.parent / "direct")
    os.unlink("a.out")
    return _plain("--", *_LINE)(servers)


def _with(**variables: str) -> dict[str, Any]:
    return {"env": {**os.environ, **variables}}


def _cases() -> Iterator[tuple[str, _Case]]:
    yield "a miss", _plain("--", *_LINE)
    yield "a hit", _plain("--", *_LINE)
    yield "a hit on the whole road", _without_a_memo
    yield "it fails", _plain("--", "fakecc", "b.txt", "-o", "b.out", **_with(FAKE_EXIT="3"))
    for name in ("SEGV", "TERM", "KILL"):
        yield f"it ends by SIG{name}", _plain("--output=out", "--", "sh", "-c", f"kill -{name} $$")
    yield "standard input", _typed("--stdin", "--", "catcc")
    yield "passed through", _typed("--", "sh", "-c", "cat; kill -PIPE $$")
    yield "a jobserver", _jobserver
    yield "a side effect", _plain("--", *_LINE, "--print")
    yield "no such tool", _plain("--", "no-such-tool")
    yield "wrong use", _plain("--nope", "--", "sh")
    yield "no such input", _plain("--", "fakecc", "nothere.txt", "-o", "c.out")
    yield "an unknown setting", _plain("--", *_LINE, **_with(CACHEC_MODE="nothing"))
    yield "required", _plain("--", "fakecc", "c.txt", "-o", "c.out", **_with(CACHEC_MODE="require"))
    yield "mode off", _plain("--", *_LINE, **_with(CACHEC_MODE="off"))
    yield "all is told", _plain("--", "fakecc", "d.txt", "-o", "d.out", **_with(CACHEC_LOG="all"))
    yield "another environment", _plain("--", *_LINE, **_with(FAKE_OPT="1", HIDDEN="2"))
    yield "a variable that is not UTF-8", _plain("--", *_LINE, **_with(FAKE_OPT=os.fsdecode(b"\xff")))
    yield "a name that is not UTF-8", _plain("--", "fakecc", os.fsdecode(b"\xff.txt"), "-o", "c.out")
    yield "another umask", _plain("--", "fakecc", "d.txt", "-o", "e.out", umask=0o077)
    yield "standard input is closed", _in_shell('exec "$0" exec -- "$@" <&-')
    yield "standard output is closed", _in_shell('exec "$0" exec -- "$@" -DX >&-')
    yield "standard error is closed", _in_shell('exec "$0" exec -- "$@" -DY 2>&-')
    yield (
        "the folder is gone",
        _in_shell('mkdir gone && cd gone && rmdir ../gone && exec "$0" exec -- sh -c "echo here"'),
    )
    yield "files may not be large", _in_shell('ulimit -f 0; exec "$0" exec -- "$@" -DZ 2>&1')
    yield "nothing can be written", _in_shell('exec "$0" exec -- "$@" -DW >/dev/full')
    yield "nothing of a failure can be written", _in_shell('FAKE_EXIT=5 exec "$0" exec -- "$@" 2>/dev/full')
    yield "no children are to be waited for", _plain("--", *_LINE, "-DV", preexec_fn=_ignore_children)
    yield "again", _plain("--", *_LINE, "-DU", preexec_fn=_ignore_children, **_with(FAKE_EXIT="3"))
    yield "its standard input by a path", _typed("--input=/dev/stdin", "--output=o", "--", "cp", "/dev/stdin", "o")


_FEW = ("a miss", "a hit on the whole road", "it fails", "it ends by SIGTERM", "standard input", "a jobserver")


@pytest.mark.parametrize("names", [pytest.param(_FEW, id="few"), pytest.param((), id="all", marks=pytest.mark.long)])
def test_all_is_the_same_with_it_and_without(
    launcher: Launcher, served: Servers, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    served.ready()
    (launcher.folder.parent / "bin" / "catcc").symlink_to(shutil.which("cat") or "")
    found = []
    for store, wanted in ((launcher.store, "auto"), (launcher.store.with_name("alone"), "off")):
        monkeypatch.setenv("CACHEC_SERVER", wanted)
        monkeypatch.setenv("CACHEC_DIR", os.fspath(store))
        for name in os.listdir():
            shutil.rmtree(name) if os.path.isdir(name) else os.unlink(name)
        for name in "abcd":
            write(f"{name}.txt", f"{name}\n")
        write(os.fsdecode(b"\xff.txt"), "x")
        if wanted == "auto":
            for path in [path for path in launcher.store.iterdir() if path != served.folder]:
                shutil.rmtree(path)
        ended = {name: case(_at(served, store)) for name, case in _cases() if not names or name in names}
        files = {name: (Path(name).read_bytes(), os.stat(name).st_mode) for name in sorted(os.listdir())}
        outcomes = [(each.reason, each.stage, each.key, each.stored) for each in read_log(store)]
        entries = {
            entry.key: [(sorted(trace.reads, key=repr), trace.value) for trace in entry.traces]
            for entry in Store(store).entries()
        }
        found.append((ended, files, outcomes, entries))
    with_it, without = found
    for seen, wanted in zip(with_it, without, strict=True):
        assert seen == wanted


def _at(servers: Servers, store: Path) -> Servers:
    there = copy.copy(servers)
    there.folder = store / servers.folder.name
    return there


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.sampled
def test_signals_reach_the_compiler_which_decides(launcher: Launcher, served: Servers, number: signal.Signals) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored by all that is started here, as under nohup")
    os.mkfifo("begun")
    os.mkfifo("alive")
    script = "trap 'echo cleaned > clean; exit 9' TERM INT HUP; echo $$ $PPID > begun; while :; do sleep 0.05; done"
    process = _start(served, "--output=out", "--", "sh", "-c", f"exec 9> alive; {script}", "sh")
    with open("alive", "rb") as alive:  # there until the last that can write to it has ended
        child, parent = map(int, Path("begun").read_text().split())
        assert parent != process.pid
        held = os.pidfd_open(child)
        process.send_signal(number)
        process.communicate(timeout=120)
        assert process.returncode == (-number if number is signal.SIGKILL else 9)
        assert select.select([held], [], [], 120)[0]
        os.close(held)
        assert alive.read() == b""
    assert Path("clean").read_text() == "cleaned\n"


#: A process that writes late, unless a signal ends it.
_LATE = "i=0; while [ $i -lt 600 ]; do i=$((i + 1)); sleep 0.05; done; echo old > out"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.sampled
def test_signals_reach_what_the_command_started(launcher: Launcher, served: Servers, number: signal.Signals) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored by all that is started here, as under nohup")
    os.mkfifo("begun")
    os.mkfifo("alive")
    write("late.sh", f"echo > begun; {_LATE}")
    process = _start(served, "--output=out", "--", "sh", "-c", "exec 9> alive 2> /dev/null; sh late.sh; exit", "sh")
    with open("alive", "rb") as alive:
        Path("begun").read_text()
        process.send_signal(number)
        process.communicate(timeout=120)
        assert process.returncode == -number
        assert alive.read() == b""
    assert not os.path.exists("out")


@pytest.mark.parametrize(
    "script",
    [f"trap '' TERM; echo > begun; {_LATE}", f"(trap '' TERM; echo > begun; {_LATE}) & wait"],
    ids=["the command", "a process that it started"],
)
def test_what_ignores_that_the_call_was_killed_is_killed(launcher: Launcher, served: Servers, script: str) -> None:
    os.mkfifo("begun")
    os.mkfifo("alive")
    process = _start(served, "--output=out", "--", "sh", "-c", f"exec 9> alive 2> /dev/null; {script}", "sh")
    with open("alive", "rb") as alive:
        Path("begun").read_text()
        process.kill()
        process.communicate(timeout=120)
        assert alive.read() == b""
    assert not os.path.exists("out")


def test_a_launcher_in_a_launcher_does_not_wait_for_that(launcher: Launcher, served: Servers) -> None:
    how = _with(CACHEC_LOG="all", CACHEC_LOCK_TIMEOUT="1")
    environment = [f"--env={name}" for name in how["env"]]
    inner = f"{served.script} exec --output=out -- sh -c 'echo inner > out'"
    process = _start(served, "--output=out", *environment, "--", "sh", "-c", f"{inner}; echo outer >> out", **how)
    _, told = process.communicate(timeout=120)
    assert (process.returncode, Path("out").read_text()) == (0, "inner\nouter\n")
    assert served.ready()  # one server: it was asked for both
    assert b"waiting" not in told


# --- it fails


def _accepted(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    return connection


def _asked(connection: socket.socket) -> None:
    """Take the whole request."""
    _, handed, _, _ = socket.recv_fds(connection, 1, 4)
    for fd in handed:
        os.close(fd)
    with connection.makefile("rb") as stream:
        assert unpack(stream.read(int.from_bytes(stream.read(8), "little")))


def _silent(connection: socket.socket, child: int) -> None:
    """It says nothing, until the other has gone."""
    while connection.recv(1 << 16):
        pass


def _leaves(connection: socket.socket, child: int) -> None:
    connection.recv(1)


def _is_no_process(connection: socket.socket, child: int) -> None:
    _asked(connection)
    connection.sendall((2**40).to_bytes(8, "little"))
    connection.recv(1)


def _begins(connection: socket.socket, child: int) -> None:
    _asked(connection)
    connection.sendall(child.to_bytes(8, "little"))
    assert connection.recv(1) == b"\1"


def _ends_untold(connection: socket.socket, child: int) -> None:
    _begins(connection, child)


def _tells_half(connection: socket.socket, child: int) -> None:
    _begins(connection, child)
    connection.sendall(CommandResult(0, b"half\n").encode()[:-3])


def _tells_nonsense(connection: socket.socket, child: int) -> None:
    _begins(connection, child)
    connection.sendall(pack([b"zero", b"", b"", b""]))


def _tells_too_much(connection: socket.socket, child: int) -> None:
    _begins(connection, child)
    connection.sendall((2**60).to_bytes(8, "little"))


def _hands_back(connection: socket.socket, child: int) -> None:
    _begins(connection, child)
    connection.sendall(pack([]))


_SERVERS = (_leaves, _silent, _is_no_process, _ends_untold, _tells_half, _tells_nonsense, _tells_too_much, _hands_back)


@pytest.mark.parametrize("behaviour", _SERVERS)
@pytest.mark.sampled
def test_a_server_that_fails_is_done_without(
    launcher: Launcher, served: Servers, behaviour: Callable[[socket.socket, int], None]
) -> None:
    (place,) = served.found()
    served.stop()
    place.unlink()
    served.say(f"client.PATIENCE = {0.5 if behaviour is _silent else 60.0}")
    write("a.txt", "x")
    with socket.socket(socket.AF_UNIX) as listener:
        with fsio.closing(os.open(place.parent, os.O_PATH)) as folder:  # a path has at most 107 bytes
            listener.bind(f"/proc/self/fd/{folder}/{place.name}")
        listener.listen(8)

        def behave() -> None:
            child = subprocess.Popen(["sleep", "1000"])
            with _accepted(listener) as connection:
                behaviour(connection, child.pid)
            child.kill()
            child.wait()

        fake = threading.Thread(target=behave)
        fake.start()
        assert not _is_served(launcher, served)
        fake.join()
    assert launcher.reasons() == ["miss:new-input", "miss:new-input"]


def _file(place: Path) -> None:
    place.write_text("no socket")


def _fifo(place: Path) -> None:
    os.mkfifo(place)


def _link(place: Path) -> None:
    place.symlink_to("/nonexistent")


def _in_its_place(place: Path) -> None:
    place.mkdir()


def _open_to_all(place: Path) -> None:
    place.parent.chmod(0o755)


def _of_another(place: Path) -> None:
    os.chown(place.parent, 12345, 12345)


def _led_elsewhere(place: Path) -> None:
    place.parent.rename(place.parent.with_name("moved"))
    place.parent.symlink_to("moved")


def _no_folder(place: Path) -> None:
    place.parent.rmdir()
    place.parent.write_text("a file")


@pytest.mark.parametrize(
    "change", [_file, _fifo, _link, _in_its_place, _open_to_all, _of_another, _led_elsewhere, _no_folder]
)
@pytest.mark.sampled
def test_what_is_no_socket_of_ones_own_is_not_asked(
    launcher: Launcher, served: Servers, change: Callable[[Path], None]
) -> None:
    if change is _of_another and os.geteuid():
        pytest.skip("only root can give a folder to another")
    (place,) = served.found()
    pid = served.ready()
    is_there = change in (_open_to_all, _of_another, _led_elsewhere)
    if not is_there:
        os.kill(pid, signal.SIGKILL)
        _await_end(pid)
        place.unlink()
    change(place)
    write("a.txt", "x")
    assert _is_served(launcher, served) == (change in {_file, _fifo})  # by a new one, in that place
    if is_there:
        os.kill(pid, signal.SIGKILL)
        _await_end(pid)


def test_one_that_is_killed_is_followed_by_another(launcher: Launcher, served: Servers) -> None:
    pid = served.ready()
    os.kill(pid, signal.SIGKILL)
    _await_end(pid)
    write("a.txt", "x")
    assert _is_served(launcher, served)
    assert served.ready() != pid
    write("a.txt", "y")
    assert _is_served(launcher, served)


def test_a_child_that_is_killed_is_done_without(launcher: Launcher, served: Servers) -> None:
    for name in ("begun", "go"):
        os.mkfifo(name)
    once = "trap '' TERM; echo > once; echo $PPID > begun; (read go < go; echo wrong > out)"
    script = f"[ -e once ] && {{ echo > out; exit; }}; {once}; echo wrong > out"
    process = _start(served, "--output=out", "--", "sh", "-c", script, "sh")
    os.kill(int(Path("begun").read_text()), signal.SIGKILL)
    assert process.communicate(timeout=120) == (b"", b"")
    assert process.returncode == 0
    with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):  # nobody waits there any more, to write then
        os.open("go", os.O_WRONLY | os.O_NONBLOCK)


def test_the_compiler_is_asked_to_end_where_all_that_wait_for_it_are_killed(
    launcher: Launcher, served: Servers
) -> None:
    os.mkfifo("begun")
    os.mkfifo("alive")
    script = "trap 'echo cleaned > clean; exit 9' TERM; echo $PPID > begun; while :; do sleep 0.05; done"
    process = _start(served, "--output=out", "--", "sh", "-c", f"exec 9> alive 2> /dev/null; {script}", "sh")
    with open("alive", "rb") as alive:
        child = int(Path("begun").read_text())
        process.send_signal(signal.SIGSTOP)  # so that it ends nothing before it is killed, too
        os.kill(child, signal.SIGKILL)
        assert alive.read() == b""  # until the last that can write to it has ended
        process.kill()
        process.communicate(timeout=120)
    assert Path("clean").read_text() == "cleaned\n"


def _name_of_server(*before: str, **how: Any) -> str:
    line = [*before, sys.executable, "-c", "from cachec.launcher import client; print(client.surroundings())"]
    told: str = subprocess.run(line, stdout=subprocess.PIPE, check=True, text=True, **how).stdout
    return told


@need("strace")
def test_one_whose_calls_somebody_follows_asks_none() -> None:
    assert _name_of_server("strace", "-f", "-o", os.devnull) == "\n"


def test_what_a_process_has_from_its_parent_chooses_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    name = _name_of_server

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    changed = [
        {"umask": 0o027},
        {"env": {**os.environ, "LD_LIBRARY_PATH": "/nonexistent"}},
        {"env": {**os.environ, "PYTHONPATH": "/nonexistent"}},
        {"env": {**os.environ, "LD_PRELOAD": "libc.so.6"}},
        {"env": {**os.environ, "LD_PRELOAD": "libc.so.6", "ANYTHING": "else"}},  # which it may obey
        {"preexec_fn": lambda: os.nice(1)},
        {"preexec_fn": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})},
        {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))},
        {"preexec_fn": lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN)},
    ]
    names = [name(), *(name(**how) for how in changed)]
    for others in ({"ANYTHING": "else"}, {"LC_MESSAGES": "C", "LANG": "C.UTF-8"}, {"TZ": "UTC"}):
        assert name(env={**os.environ, **others}) == names[0], others
    if len(os.sched_getaffinity(0)) == 1:
        names.pop(7)
    if os.getpriority(os.PRIO_PROCESS, 0) == 19:  # the last there is
        names.pop(6)
    assert len({*names}) == len(names)


def test_endings_and_messages_that_are_cut() -> None:
    whole = CommandResult(-9, b"out", b"err", ("/bin/sh", ["sh", os.fsdecode(b"\xff")])).encode()
    length = int.from_bytes(whole[:8], "little")
    assert length == len(whole) - 8
    read = CommandResult.decode(whole[8:])
    assert CommandResult.decode(CommandResult(None, become=("/bin/sh", ["sh"])).encode()[8:]).status is None
    assert (read.status, read.stdout, read.stderr, read.become) == (
        -9, b"out", b"err", ("/bin/sh", ["sh", os.fsdecode(b"\xff")]),
    )  # fmt: skip
    for end in range(length):
        try:
            cut = unpack(whole[8 : 8 + end])
        except (ValueError, IndexError):
            continue
        assert len(cut) < 6
    assert client.PATIENCE <= 5
