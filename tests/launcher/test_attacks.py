"""Attempts to get a wrong result handed out. After each the outputs have to be what the command itself would write."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachec.base import fsio
from cachec.launcher import running
from tests.launcher.conftest import Launcher, need, wait_for_clock, write

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


def test_an_input_that_was_changed_back_during_the_compile(launcher: Launcher) -> None:
    write("in", "one\n")
    line = ["sh", "-c", "echo two > in; cp in out; echo one > in"]
    launcher.run(*line, options=["--input=in", "--output=out"])
    assert launcher.last().reason.value == "bypass:input-changed-during-run"
    assert not launcher.last().stored


def test_a_source_that_is_a_link_and_leads_elsewhere_now(launcher: Launcher) -> None:
    write("one", "one\n")
    write("two", "two\n")
    os.symlink("one", "a.txt")
    assert _both(launcher, *_LINE) == "miss:new-input"
    assert _both(launcher, *_LINE) == "hit"
    os.unlink("a.txt")
    os.symlink("two", "a.txt")
    assert _both(launcher, *_LINE) == "miss:file-changed"
    assert _text() == "two"


def test_a_folder_that_is_a_link_and_leads_elsewhere_now(launcher: Launcher) -> None:
    for name in ("one", "two"):
        write(f"{name}/a.txt", name + "\n")
    os.symlink("one", "src")
    line = ("fakecc", "src/a.txt", "-o", "a.out")
    _both(launcher, *line)
    assert _both(launcher, *line) == "hit"
    os.unlink("src")
    os.symlink("two", "src")
    assert _both(launcher, *line) == "miss:file-changed"
    assert _text() == "two"


def test_another_folder_under_the_same_name(known: Launcher) -> None:
    here = os.getcwd()
    os.rename(here, here + ".old")
    os.mkdir(here)
    os.chdir(here)
    write("a.txt", "two\n")
    assert _both(known, *_LINE) == "miss:file-changed"
    assert _text() == "two"


def test_a_source_swapped_for_one_of_equal_size_and_times(known: Launcher) -> None:
    before = os.stat("a.txt")
    write("b.txt", "two\n")
    os.utime("b.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.rename("b.txt", "a.txt")
    assert _both(known, *_LINE) == "miss:file-changed"
    assert _text() == "two"


def test_the_clock_is_set_back_and_forth(known: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    for shift, text in ((-86_400.0, "two"), (86_400.0, "three"), (-3.0, "four")):
        monkeypatch.setattr(time, "time", lambda shift=shift: now + shift)
        write("a.txt", text + "\n")
        assert _both(known, *_LINE) == "miss:file-changed"
        assert _text() == text
        write("a.txt", text.upper() + "\n")
        assert _both(known, *_LINE) == "miss:file-changed"
        assert _text() == text.upper()


def test_a_change_from_the_future_is_not_trusted() -> None:
    found = fsio.Identity(1, 2, 3, 4, int((time.time() + 3600) * 1e9))
    assert not fsio.settled(found)


@pytest.mark.parametrize("place", ["/dev/stdin", "/proc/self/fd/0"])
def test_standard_input_under_a_name(launcher: Launcher, place: str) -> None:
    write("a.txt", "one\n")
    with open("a.txt") as file:
        saved = os.dup(0)
        os.dup2(file.fileno(), 0)
        try:
            ran = launcher.run("fakecc", place, "-o", "a.out")
        finally:
            os.dup2(saved, 0)
            os.close(saved)
    assert "cachec: error: fakecc" in ran.stderr  # passed through
    assert launcher.last().reason.value == "bypass:not-understood"


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
    adapter = tmp_path / "fakecc.toml"
    adapter.write_text(adapter.read_text().replace("single = true", "response_files = true"))
    write("a.txt", "x")
    for text in ('"-Da\\b"', '"-Da\\\\b"'):  # one argument by shlex, two by LLVM
        write("a.rsp", text)
        launcher.run("fakecc", "a.txt", "-o", "a.out", "@a.rsp")
        assert launcher.last().reason.kind == "miss"


@pytest.mark.parametrize("name", ["PYTHONPATH", "IREE_COMPILER_LIB"])
def test_a_variable_that_chooses_another_compiler(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    adapter = launcher.folder.parent / "fakecc.toml"
    adapter.write_text(adapter.read_text() + f'unknown = ["{name}"]\n')
    write("a.txt", "x")
    launcher.run(*_LINE)
    assert _both(launcher, *_LINE) == "hit"
    monkeypatch.setenv(name, "/elsewhere")
    assert launcher.direct(*_LINE) is None
    launcher.run(*_LINE)
    assert launcher.last().reason.value == "bypass:not-understood"
    assert f"{name} is set" in launcher.last().detail


def test_a_forgotten_input_of_an_unknown_command(launcher: Launcher) -> None:
    write("gen.sh", 'cat "$1" > "$2"\n')
    line = ("sh", "gen.sh", "in", "out")
    for name, text, reason in (
        ("in", "one", "miss:new-input"),
        ("in", "one", "hit"),
        ("in", "two", "miss:file-changed"),
        ("gen.sh", 'cat "$1" "$1" > "$2"\n', "miss:file-changed"),
    ):
        write(name, text)
        if launcher.direct(*line, options=["--output=out"]) is None:
            launcher.run(*line, options=["--output=out"])
        assert launcher.last().reason.value == reason
    assert Path("out").read_text() == "twotwo"


def test_a_forgotten_output_of_an_unknown_command(launcher: Launcher) -> None:
    write("in", "one")
    for _ in range(2):
        launcher.run("cp", "in", "out", options=["--input=in"])
        assert launcher.last().reason.value == "bypass:undescribed-effect"
        os.unlink("out")


def test_a_forgotten_folder_of_an_unknown_command(launcher: Launcher) -> None:
    write("d/in", "one")
    launcher.run("cp", "-r", "d", "e", options=["--output=e"])
    assert launcher.last().reason.value == "bypass:not-understood"
    assert "--input d" in launcher.last().detail
    launcher.run("cp", "-r", "d", "e", options=["--output=e", "--input=d"])
    assert launcher.last().stored


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


def test_a_file_that_was_there_before_and_is_not_written(launcher: Launcher) -> None:
    write("a.out", "of another command\n")
    for content in ("one", "two"):
        write("in", content)
        assert launcher.run("sh", "-c", "cat in", options=["--input=in", "--output=a.out"]).code == 0
        assert launcher.last().reason.value == "bypass:undescribed-effect"
        assert "a.out" in launcher.last().detail
        assert not launcher.last().stored


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


@pytest.mark.parametrize(("mode", "is_stored"), [(0o604, False), (0o641, False), (0o644, True)])
def test_an_output_that_keeps_the_mode_that_it_had(launcher: Launcher, mode: int, is_stored: bool) -> None:
    """Somebody else may have chosen it."""
    plain = 0o666 & ~_umask()
    mode = mode if mode != 0o644 else plain
    line = ("sh", "-c", "cat in.txt > out.txt")
    options = ["--input=in.txt", "--output=out.txt"]
    write("in.txt", "x")
    write("out.txt", "old").chmod(mode)
    assert launcher.run(*line, options=options).code == 0
    assert launcher.last().stored == is_stored
    Path("out.txt").unlink()
    for _ in range(2):
        assert launcher.run(*line, options=options).code == 0
        assert Path("out.txt").stat().st_mode & 0o777 == plain


def test_what_was_in_an_output_folder_before_is_no_result(launcher: Launcher) -> None:
    line = ["sh", "-c", "mkdir -p d; cp in d/made"]
    options = ["--input=in", "--output=d"]
    write("d/older", "of another command\n")
    write("in", "one")
    launcher.run(*line, options=options)
    assert not launcher.last().stored
    assert launcher.last().reason.value == "bypass:undescribed-effect"
    assert "d/older" in launcher.last().detail
    shutil.rmtree("d")
    launcher.run(*line, options=options)
    assert launcher.last().stored
    shutil.rmtree("d")
    launcher.run(*line, options=options)
    assert launcher.last().hit
    assert os.listdir("d") == ["made"]


@pytest.mark.parametrize("place", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_under_a_name(launcher: Launcher, place: str) -> None:
    write("a.txt", "one\n")
    with open("to", "w") as file:
        saved = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            launcher.run("fakecc", "a.txt", "-o", place)
        finally:
            os.dup2(saved, 1)
            os.close(saved)
    assert launcher.last().reason.value == "bypass:not-understood"


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


def test_a_read_only_output(known: Launcher) -> None:
    made = Path("a.out").read_bytes()
    write("a.out", "other")
    os.chmod("a.out", 0o444)
    assert known.direct(*_LINE) is not None
    assert Path("a.out").read_bytes() == made
    assert os.stat("a.out").st_mode & 0o222


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
    assert known.last().reason.value == "bypass:not-understood"
    assert "it may not be written" in known.last().detail


@pytest.mark.parametrize("direct", [False, True])
def test_the_umask_of_now_counts(known: Launcher, direct: bool) -> None:
    os.unlink("a.out")
    saved = os.umask(0o027)
    try:
        assert (known.direct if direct else known.run)(*_LINE) is not None
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
    write("in", "one")
    inner = f"{sys.executable} -m cachec exec --input=in --output=out -- cp in out"
    line = [
        sys.executable,
        "-m",
        "cachec",
        "exec",
        "--input=in",
        "--output=out",
        "--env=CACHEC_DIR",
        "--env=PYTHONPATH",
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(2):
        subprocess.run([*line, "--", "sh", "-c", inner], check=True, timeout=60, env=environ)
        assert Path("out").read_text() == "one"
    assert launcher.reasons() == ["miss:new-input", "miss:new-input", "hit"]


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
    run = running.run_command

    def disturbed(*args: object) -> object:
        value = run(*args)  # type: ignore[arg-type]
        write("out", "something else")
        return value

    monkeypatch.setattr(running, "run_command", disturbed)
    launcher.run("cp", "in", "out", options=["--input=in", "--output=out"])
    monkeypatch.setattr(running, "run_command", run)
    assert not launcher.last().stored
    launcher.run("cp", "in", "out", options=["--input=in", "--output=out"])
    assert Path("out").read_text() == "one"


# --- what a command is told beside its arguments


@pytest.mark.parametrize("name", ["LC_ALL", "LANG", "LC_COLLATE", "LANGUAGE"])
@pytest.mark.sampled
def test_the_locale_counts(known: Launcher, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "tr_TR.UTF-8")
    assert _both(known, *_LINE) == "miss:environment-changed"
    monkeypatch.delenv(name)
    assert _both(known, *_LINE) == "hit"


def test_an_empty_variable_is_not_an_unset_one(known: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_OPT", "")
    assert _both(known, *_LINE) == "miss:environment-changed"


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


@pytest.fixture
def clang(launcher: Launcher) -> Iterator[Callable[..., tuple[str, bytes]]]:
    """Compiles ``a.c`` behind the cache, by either road, and by itself; the two objects have to be equal."""

    def compiled(*flags: str, name: str = "a.c") -> tuple[str, bytes]:
        wait_for_clock()
        reason = _both(launcher, CLANG, *flags, "-c", name, "-o", "a.o")
        found = Path("a.o").read_bytes()
        subprocess.run([CLANG, *flags, "-c", name, "-o", "a.o"], check=True, env={**os.environ, "PWD": os.getcwd()})
        assert Path("a.o").read_bytes() == found
        return reason, found

    return compiled


_Clang = Callable[..., tuple[str, bytes]]
_SOURCE = '#include "my.h"\nint f(void) { return VALUE; }\n'


@need(CLANG)
@pytest.mark.parametrize(
    ("flags", "there", "added"),
    [
        (("-isystem", "sys", "-I", "inc"), "sys", "inc"),
        (("-idirafter", "sys", "-isystem", "inc"), "sys", "inc"),
        (("-I", "sys", "-iquote", "inc"), "sys", "inc"),
        (("-Isys", "-Isub/deep"), "sys", "."),
    ],
)
@pytest.mark.sampled
def test_a_header_in_a_folder_that_is_searched_first_though_named_later(
    launcher: Launcher, clang: _Clang, flags: tuple[str, ...], there: str, added: str
) -> None:
    for folder in ("sys", "inc", "sub/deep"):
        os.makedirs(folder, exist_ok=True)
    write("a.c", _SOURCE)
    write(f"{there}/my.h", "#define VALUE 1\n")
    clang(*flags)
    assert clang(*flags)[0] == "hit"
    write(f"{added}/my.h", "#define VALUE 2\n")
    assert clang(*flags)[0] == "miss:dependency-changed"


@need(CLANG)
def test_a_header_behind_a_link_that_led_nowhere(clang: _Clang) -> None:
    write("a.c", _SOURCE)
    write("two/my.h", "#define VALUE 1\n")
    os.mkdir("one")
    os.symlink("../later.h", "one/my.h")
    clang("-Ione", "-Itwo")
    assert clang("-Ione", "-Itwo")[0] == "hit"
    write("later.h", "#define VALUE 2\n")
    assert clang("-Ione", "-Itwo")[0] == "miss:dependency-changed"


@need(CLANG)
def test_a_header_of_a_header(clang: _Clang) -> None:
    write("a.c", '#include "one/outer.h"\nint f(void) { return VALUE; }\n')
    write("one/outer.h", '#include "sub/inner.h"\n')
    write("two/sub/inner.h", "#define VALUE 1\n")
    clang("-I.", "-Itwo")
    assert clang("-I.", "-Itwo")[0] == "hit"
    write("one/sub/inner.h", "#define VALUE 2\n")
    assert clang("-I.", "-Itwo")[0] == "miss:dependency-changed"


@need(CLANG)
def test_a_header_that_is_asked_for_by_a_macro(launcher: Launcher) -> None:
    write(
        "a.c", '#define OTHER "other.h"\n#if __has_include(OTHER)\n#include OTHER\n#endif\nint f(void) { return 1; }\n'
    )
    wait_for_clock()
    launcher.run(CLANG, "-c", "a.c", "-o", "a.o")
    assert launcher.last().reason.value == "bypass:volatile-input"
    assert not launcher.last().stored


@need(CLANG)
@pytest.mark.parametrize("flag", ["-I.", "-isystem."])
@pytest.mark.sampled
def test_a_header_in_a_folder_of_the_system(clang: _Clang, flag: str) -> None:
    write("a.c", "#include <sys/stat.h>\n#ifndef VALUE\n#define VALUE 1\n#endif\nint f(void) { return VALUE; }\n")
    os.mkdir("sys")
    clang(flag)
    assert clang(flag)[0] == "hit"
    write("sys/stat.h", "#define VALUE 2\n")
    assert clang(flag)[0] == "miss:dependency-changed"


@need(CLANG)
def test_the_time_in_a_definition(launcher: Launcher) -> None:
    write("a.c", "const char *f(void) { return NOW; }\n")
    launcher.run(CLANG, "-DNOW=__TIME__", "-c", "a.c", "-o", "a.o")
    assert launcher.last().reason.value == "bypass:volatile-input"


@need(CLANG)
@pytest.mark.parametrize("ending", ["clang.cfg", "x86_64-pc-linux-gnu.cfg"])
@pytest.mark.sampled
def test_a_configuration_file_beside_the_compiler(launcher: Launcher, tmp_path: Path, ending: str) -> None:
    real = os.path.realpath(shutil.which(CLANG) or "")
    folder = tmp_path / "tool[c]hain"
    folder.mkdir()
    tool = folder / "clang-19"
    shutil.copy(real, tool)
    write("a.c", "#ifndef VALUE\n#define VALUE 1\n#endif\nint f(void) { return VALUE; }\n")
    line = (tool, "-c", "a.c", "-o", "a.o")
    wait_for_clock()
    if launcher.run(*line).code:
        pytest.skip("this clang can't be copied")
    made = Path("a.o").read_bytes()
    wait_for_clock()
    _both(launcher, *line)
    assert launcher.last().hit
    (folder / ending).write_text("-DVALUE=2\n")
    assert launcher.direct(*line) is None
    launcher.run(*line)
    assert launcher.last().reason.value == "bypass:not-understood"
    assert ending in launcher.last().detail
    os.unlink(folder / ending)
    assert _both(launcher, *line) == "hit"
    assert Path("a.o").read_bytes() == made


@need(CLANG)
@pytest.mark.parametrize(
    "flags",
    [("-emit-llvm",), ("-g", "-gz=zlib"), ("-g", "-Wa,--compress-debug-sections"), ("-g",), ("-emit-llvm", "-g")],
)
@pytest.mark.sampled
def test_a_checkout_gets_no_paths_of_another_one(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    for number in ("1", "2", "1"):
        folder = tmp_path / f"checkout{number}"
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PWD", str(folder))
        monkeypatch.setenv("CACHEC_BASE_DIR", str(folder))
        write("a.c", "int f(void) { return 1; }\n")
        wait_for_clock()
        line = [CLANG, *flags, "-c", f"{folder}/a.c", "-o", "a.o"]
        if launcher.direct(*line) is None:
            launcher.run(*line)
        if launcher.last().reason.kind == "bypass":
            return  # passed through, which is right too
        found = Path("a.o").read_bytes()
        subprocess.run(line, check=True)
        assert Path("a.o").read_bytes() == found


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
            running = [
                subprocess.Popen([*line, name], env=environ, stdout=subprocess.DEVNULL, stderr=-3) for name in names
            ]
            assert [each.wait(60) for each in running] == [0, 0, 0]
            assert {Path(name).read_text().splitlines()[0] for name in names} <= {"0", "1", "2"}
    finally:
        stop.set()
        thread.join()
    for text in ("0", "1", "2"):
        write("a.txt", text + "\n")
        launcher.run(*_LINE)
        assert _text() == text
