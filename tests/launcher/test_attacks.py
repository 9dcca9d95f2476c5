"""Attempts to get a wrong result handed out. After each the outputs have to be what the command itself would write."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cachec.base import fsio
from cachec.launcher import traced_command
from tests.launcher.conftest import Launcher, need, write

CLANG = next((name for name in ("clang-19", "clang") if shutil.which(name)), "clang-19")
_LINE = ("fakecc", "a.txt", "-o", "a.out")


def _both(launcher: Launcher, *line: object) -> str:
    """The reason of a command line, by the direct road where that has an answer."""
    if launcher.direct(*line) is None:
        assert launcher.run(*line).code == 0
    return launcher.last().reason.value


@pytest.fixture
def known(launcher: Launcher) -> Launcher:
    """One command line was answered, and would be a hit on either road."""
    write("a.txt", "one\n")
    launcher.run(*_LINE)
    assert _both(launcher, *_LINE) == "hit"
    return launcher


def _text() -> str:
    return Path("a.out").read_text().splitlines()[0]


# --- inputs


def _link_elsewhere() -> None:
    os.rename("a.txt", "one")
    os.symlink("one", "a.txt")
    assert Path("a.txt").read_text() == "one\n"
    os.unlink("a.txt")
    write("other/two", "two\n")
    os.symlink("other/two", "a.txt")


def _another_folder() -> None:
    here = os.getcwd()
    os.rename(here, here + ".old")
    os.mkdir(here)
    os.chdir(here)
    write("a.txt", "two\n")


def _equal_size_and_times() -> None:
    before = os.stat("a.txt")
    write("b.txt", "two\n")
    os.utime("b.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.rename("b.txt", "a.txt")


@pytest.mark.parametrize("change", [_link_elsewhere, _another_folder, _equal_size_and_times])
def test_another_file_under_the_name_of_an_input(known: Launcher, change: Callable[[], None]) -> None:
    change()
    assert _both(known, *_LINE) == "miss:file-changed"
    assert _text() == "two"
    assert _both(known, *_LINE) == "hit"


def test_an_input_that_the_command_itself_writes(launcher: Launcher) -> None:
    line = ("sh", "-c", "cat in >> log; echo two > in; cp in out; echo three > in")
    for text in ("one\n", "one\n", "four\n"):
        write("in", text)
        write("log", "")
        assert launcher.run(*line).code == 0
        assert [Path(name).read_text() for name in ("log", "in", "out")] == [text, "three\n", "two\n"]


def test_the_clock_is_set_back_and_forth(known: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    for shift, text in ((-86_400.0, "two"), (86_400.0, "three"), (-3.0, "four")):
        monkeypatch.setattr(time, "time", lambda shift=shift: now + shift)
        for each in (text, text.upper()):
            write("a.txt", each + "\n")
            assert _both(known, *_LINE) != "hit"
            assert _text() == each


def test_a_change_from_the_future_is_not_trusted() -> None:
    found = fsio.Identity(1, 2, 3, 4, int((time.time() + 3600) * 1e9))
    assert not fsio.is_settled(found)


@pytest.mark.parametrize("place", ["/dev/stdin", "/proc/self/fd/0"])
def test_standard_input_under_a_name(launcher: Launcher, place: str) -> None:
    saved = os.dup(0)
    try:
        for text in ("one", "two", "one"):
            with open(write(f"{text}.txt", text + "\n")) as file:
                os.dup2(file.fileno(), 0)
            assert _both(launcher, "fakecc", place, "-o", "a.out")
            assert _text() == text
    finally:
        os.dup2(saved, 0)
        os.close(saved)


def test_what_a_link_in_an_input_folder_leads_to(launcher: Launcher, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    line = ["sh", "-c", "cat in/link > out"]
    os.mkdir("in")
    os.symlink(outside, "in/link")
    for text in ("one", "two"):
        outside.write_text(text)
        launcher.run(*line, options=["--input=in", "--output=out"])
        assert Path("out").read_text() == text


def test_response_files_that_only_a_compiler_reads_differently(launcher: Launcher, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "fakecc"
    tool.write_text(tool.read_text().replace("    -*)", '    @*) flags="$flags $(cat "${1#@}")" ;;\n    -*)'))
    write("a.txt", "x")
    for text in ('"-Da\\b"', '"-Da\\\\b"'):  # one argument by shlex, two by LLVM
        write("a.rsp", text)
        launcher.run("fakecc", "a.txt", "-o", "a.out", "@a.rsp")
        assert launcher.last().reason.kind == "miss"


@pytest.mark.parametrize("folder", ["gone", "/proc/self/nowhere"])
def test_no_folder_for_the_store(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    write("gone", "a file")
    write("a.txt", "one\n")
    monkeypatch.setenv("CACHEC_DIR", folder)
    for _ in range(2):
        assert launcher.run(*_LINE).code == 0
        assert _text() == "one"
    assert launcher.compiled() == 2


def test_a_current_folder_that_was_removed(launcher: Launcher) -> None:
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir(launcher.folder / "gone")
    ran = launcher.run("fakecc", "a.txt", "-o", "a.out")
    assert ran.code == 2
    assert "cachec: error: " in ran.stderr


# --- outputs


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


@pytest.mark.parametrize("mode", [0o604, 0o641, 0o644])
def test_an_output_that_keeps_the_mode_that_it_had(launcher: Launcher, mode: int) -> None:
    """A new one gets what the command asked for."""
    plain = 0o666 & ~_umask()
    mode = mode if mode != 0o644 else plain
    line = ("sh", "-c", "cat in.txt > out.txt")
    options = ["--input=in.txt", "--output=out.txt"]
    write("in.txt", "x")
    write("out.txt", "old").chmod(mode)
    assert launcher.run(*line, options=options).code == 0
    assert launcher.last().stored
    Path("out.txt").unlink()
    for _ in range(2):
        assert launcher.run(*line, options=options).code == 0
        assert Path("out.txt").stat().st_mode & 0o777 == plain


def test_what_was_in_an_output_folder_before_is_no_result(launcher: Launcher) -> None:
    line = ["sh", "-c", "mkdir -p d; cp in d/made"]
    write("d/older", "of another command\n")
    write("in", "one")
    for wanted in (["made", "older"], ["made"]):
        assert sorted(os.listdir("d")) == ["older"] if wanted[1:] else True
        _both(launcher, *line)
        assert sorted(os.listdir("d")) == wanted
        shutil.rmtree("d")
    _both(launcher, *line)
    assert launcher.last().hit
    assert os.listdir("d") == ["made"]


@pytest.mark.parametrize("place", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_under_a_name(launcher: Launcher, place: str) -> None:
    write("a.txt", "one\n")
    ran = [launcher.run("fakecc", "a.txt", "-o", place) for _ in range(2)]
    assert ran[0] == ran[1]
    assert "one\n" in ran[0].stdout


def test_a_process_that_writes_after_the_command_has_ended(launcher: Launcher) -> None:
    os.mkfifo("go")
    line = ["sh", "-c", "echo early > out; (read go < go; echo late >> out) > /dev/null 2>&1 &"]
    launcher.run(*line, options=["--output=out"])
    assert launcher.last().reason.value == "bypass:undescribed-effect"
    assert not launcher.last().stored
    Path("go").write_text("go\n")
    for _ in range(3000):
        if Path("out").read_text() == "early\nlate\n":
            return
        time.sleep(0.01)
    raise AssertionError(Path("out").read_text())


@pytest.mark.parametrize("option", [[], ["--hardlink"]])
def test_an_output_by_hard_link_that_was_written_to(launcher: Launcher, option: list[str]) -> None:
    write("in", "one")
    line = ("cp", "in", "out")
    options = ["--input=in", "--output=out"]
    launcher.run(*line, options=options)
    os.unlink("out")
    launcher.run(*line, options=[*options, "--hardlink"])
    assert launcher.last().hit
    os.chmod("out", 0o644)
    write("out", "two")
    os.rename("out", "kept")
    for _ in range(2):
        if option or launcher.direct(*line, options=options) is None:
            launcher.run(*line, options=[*options, *option])
        assert Path("out").read_text() == "one"
    assert Path("kept").read_text() == "two"


def test_an_output_that_was_changed_with_its_size_and_times_kept(known: Launcher) -> None:
    made = Path("a.out").read_bytes()
    before = os.stat("a.out")
    write("a.out", bytes(reversed(made)))
    os.utime("a.out", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert known.direct(*_LINE) is not None
    assert Path("a.out").read_bytes() == made


@pytest.mark.parametrize("kind", ["link", "link to nowhere", "pipe", "folder"])
def test_what_is_no_file_in_the_place_of_an_output_is_left_to_the_command(known: Launcher, kind: str) -> None:
    os.unlink("a.out")
    write("real", "precious")
    {
        "link": lambda: os.symlink("real", "a.out"),
        "link to nowhere": lambda: os.symlink("nowhere", "a.out"),
        "pipe": lambda: os.mkfifo("a.out"),
        "folder": lambda: os.mkdir("a.out"),
    }[kind]()
    before = os.lstat("a.out")
    assert known.direct(*_LINE) is None
    assert (os.lstat("a.out").st_ino, Path("real").read_text()) == (before.st_ino, "precious")
    assert not os.path.exists("nowhere")


def test_what_may_not_be_written_is_left_to_the_command(known: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chmod("a.out", 0o444)
    write("b.out", "x")
    monkeypatch.setattr(os, "access", lambda path, mode, **_: mode != os.W_OK or os.stat(path).st_mode & 0o200)
    assert known.direct(*_LINE) is None
    assert os.stat("a.out").st_mode & 0o777 == 0o444
    known.run(*_LINE)
    assert known.last().reason.kind == "bypass"


@pytest.mark.parametrize("direct", [False, True])
def test_the_umask_of_now_counts(known: Launcher, direct: bool) -> None:
    os.unlink("a.out")
    saved = os.umask(0o027)
    try:
        assert known.direct(*_LINE) is None
        for _ in range(2):
            assert known.run(*_LINE).code == 0
        assert not direct or known.direct(*_LINE) is not None
    finally:
        os.umask(saved)
    assert os.stat("a.out").st_mode & 0o777 == 0o640


def test_two_command_lines_with_one_output_at_once(launcher: Launcher) -> None:
    """The one that is slower has its output replaced before it is stored."""
    script = "cp $0 out; : > done-$0; while [ ! -e go-$0 ]; do sleep 0.01; done"
    for name in ("one", "two"):
        write(name, name)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def start(name: str) -> subprocess.Popen[bytes]:
        line = [
            sys.executable,
            "-m",
            "cachec",
            "exec",
            f"--input={name}",
            "--output=out",
            "--",
            "sh",
            "-c",
            script,
            name,
        ]
        return subprocess.Popen(line, env=environ)

    def wait(name: str) -> None:
        for _ in range(1000):
            if os.path.exists(name):
                return
            time.sleep(0.01)
        raise AssertionError(f"{name} did not appear")

    first = start("one")
    wait("done-one")
    second = start("two")
    time.sleep(0.6)
    write("go-two", "")
    write("go-one", "")
    assert (first.wait(30), second.wait(30)) == (0, 0)
    for name in ("one", "two"):
        launcher.run("sh", "-c", script, name, options=[f"--input={name}", "--output=out"])
        assert Path("out").read_text() == name


def test_a_launcher_that_runs_a_launcher_with_the_same_output(launcher: Launcher) -> None:
    launch = [sys.executable, "-m", "cachec", "exec", "--output=out", "--"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for text in ("one", "two", "one", "one"):
        write("in", text)
        subprocess.run([*launch, "sh", "-c", f"{' '.join(launch)} cp in out"], check=True, timeout=60, env=environ)
        assert Path("out").read_text() == text


def test_a_lock_that_a_killed_launcher_left(known: Launcher) -> None:
    (path,) = (known.store / "direct").glob("*/*")
    lock = next(Path(os.fsdecode(field)) for field in path.read_bytes().split(b"\0") if b"/locks/" in field)
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text("1\n")
    assert known.direct(*_LINE) is None
    assert known.run(*_LINE).code == 0
    assert known.last().hit
    assert not lock.exists()
    assert known.direct(*_LINE) is not None


def test_an_output_that_another_program_writes_to_before_it_is_stored(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("in", "one")
    run = traced_command.run_command

    def disturbed(*args: object) -> object:
        value = run(*args)  # type: ignore[arg-type]
        write("out", "something else")
        return value

    monkeypatch.setattr(traced_command, "run_command", disturbed)
    launcher.run("cp", "in", "out", options=["--input=in", "--output=out"])
    monkeypatch.setattr(traced_command, "run_command", run)
    assert not launcher.last().stored
    launcher.run("cp", "in", "out", options=["--input=in", "--output=out"])
    assert Path("out").read_text() == "one"


# --- what a command is told beside its arguments


@pytest.mark.parametrize("mode", ["refresh", "verify", "read-only"])
def test_a_mode_that_runs_is_not_answered_from_a_memo(
    known: Launcher, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    ran = known.compiled()
    monkeypatch.setenv("CACHEC_MODE", mode)
    assert known.direct(*_LINE) is None
    known.run(*_LINE)
    assert known.compiled() == ran + (mode != "read-only")


def test_a_refreshed_entry_is_what_a_memo_hands_out_next(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = ("sh", "-c", f"cat {tmp_path}/hidden > out")
    write(str(tmp_path / "hidden"), "one")
    launcher.run(*line, options=["--output=out"])
    assert launcher.direct(*line, options=["--output=out"]) is not None
    write(str(tmp_path / "hidden"), "two")
    monkeypatch.setenv("CACHEC_MODE", "refresh")
    launcher.run(*line, options=["--output=out"])
    monkeypatch.delenv("CACHEC_MODE")
    os.unlink("out")
    if launcher.direct(*line, options=["--output=out"]) is None:
        launcher.run(*line, options=["--output=out"])
    assert launcher.last().hit
    assert Path("out").read_text() == "two"


def test_mode_require_does_not_trust_a_stale_memo(known: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.txt", "two\n")
    monkeypatch.setenv("CACHEC_MODE", "require")
    assert known.direct(*_LINE) is None
    assert known.run(*_LINE).code == 2
    assert _text() == "one"


# --- what clang finds by itself


@need(CLANG)
def test_a_configuration_file_beside_the_compiler(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It may hold flags that put the folder into the result where nobody sees it."""
    folder = tmp_path / "tool[c]hain"
    folder.mkdir()
    tool = folder / "clang-19"
    shutil.copy(os.path.realpath(shutil.which(CLANG) or ""), tool)
    line = [str(tool), "-c", "a.c", "-o", "a.o"]
    write("a.c", "int f(void) { return 1; }\n")
    if launcher.run(*line).code:
        pytest.skip("this clang can't be copied")
    made = Path("a.o").read_bytes()
    (folder / "clang.cfg").write_text("-g -gz\n")
    for place in (".", "x", "y"):
        write(f"{place}/a.c", "int f(void) { return 1; }\n")
        monkeypatch.chdir(place)
        monkeypatch.setenv("PWD", os.getcwd())
        assert _both(launcher, *line).startswith("miss:")
        found = Path("a.o").read_bytes()
        subprocess.run(line, check=True)
        assert Path("a.o").read_bytes() == found != made
        monkeypatch.chdir(launcher.folder)
    os.unlink(folder / "clang.cfg")
    assert _both(launcher, *line) == "hit"
    assert Path("a.o").read_bytes() == made


# --- many at once


@pytest.mark.long
def test_hits_and_a_changing_source(launcher: Launcher) -> None:
    """While a source changes, no process ever gets an output of a state that the source never had."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    write("a.txt", "0\n")
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            write("b.txt", f"{number % 3}\n")
            os.rename("b.txt", "a.txt")
            time.sleep(0.02)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(4):
            names = [f"out{number}" for number in range(3)]
            line = [sys.executable, "-m", "cachec", "exec", "--", "fakecc", "a.txt", "-o"]
            traced_command = [
                subprocess.Popen([*line, name], env=environ, stdout=subprocess.DEVNULL, stderr=-3) for name in names
            ]
            assert [each.wait(60) for each in traced_command] == [0, 0, 0]
            assert {Path(name).read_text().splitlines()[0] for name in names} <= {"0", "1", "2"}
    finally:
        stop.set()
        thread.join()
    for text in ("0", "1", "2"):
        write("a.txt", text + "\n")
        launcher.run(*_LINE)
        assert _text() == text
