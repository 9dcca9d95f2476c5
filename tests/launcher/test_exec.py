"""``cachec exec`` from end to end, by the whole road: what is handed out is what the command would have written."""

from __future__ import annotations

import os
import shutil
import stat
import warnings
from pathlib import Path

import pytest

from cachec.base.hashing import FileDigests
from cachec.model import Reason
from tests.launcher.conftest import Launcher, write


def _once(launcher: Launcher) -> None:
    write("a.txt", "source\n")
    assert launcher.run("fakecc", "a.txt", "-o", "a.out") == (0, "compiled\n", "warning: fake\n")
    assert launcher.reasons() == ["miss:new-input"]


def test_a_hit_hands_out_what_was_written_and_said(launcher: Launcher) -> None:
    _once(launcher)
    made = Path("a.out").read_bytes()
    os.unlink("a.out")
    ran = launcher.run("fakecc", "a.txt", "-o", "a.out")
    assert ran == (0, "compiled\n", "warning: fake\n")
    assert Path("a.out").read_bytes() == made
    assert launcher.reasons() == ["miss:new-input", "hit"]
    assert launcher.compiled() == 1


@pytest.mark.parametrize("answer", ["hit", "miss"])
def test_an_identical_output_is_new_unless_restat_is_said(launcher: Launcher, answer: str) -> None:
    _once(launcher)
    for options in ([], ["--restat"]):
        os.utime("a.out", (1, 1))
        before = os.stat("a.out")
        if answer == "miss":
            write("a.txt", f"x\n{len(options)}\n")
            Path("a.out").write_text(f"x\n{len(options)}\nflags: opt: hidden:\n")  # as it comes to be
            os.utime("a.out", (1, 1))
        launcher.run("fakecc", "a.txt", "-o", "a.out", options=options)
        assert launcher.last().reason.kind == answer
        after = os.stat("a.out")
        assert after.st_ino == before.st_ino
        assert (after.st_mtime_ns == before.st_mtime_ns) == bool(options)
        assert options or after.st_mtime_ns >= os.stat("a.txt").st_mtime_ns


def test_an_output_that_is_a_hard_link_into_the_store_is_new(launcher: Launcher) -> None:
    _once(launcher)
    for _ in range(2):
        os.utime("a.txt")
        launcher.run("fakecc", "a.txt", "-o", "a.out", options=["--hardlink"])
        assert launcher.last().hit
        assert os.stat("a.out").st_mtime_ns >= os.stat("a.txt").st_mtime_ns


def test_a_folder_of_outputs_is_new(launcher: Launcher) -> None:
    line, options = ("sh", "-c", "mkdir -p d; cp a.txt d/b"), ["--input=a.txt", "--output=d"]
    for expected in ("miss", "hit"):
        write("a.txt", "x\n")
        launcher.run(*line, options=options)
        assert launcher.last().reason.kind == expected
        assert min(os.stat(path).st_mtime_ns for path in ("d", "d/b")) >= os.stat("a.txt").st_mtime_ns


def test_outputs_have_the_modes_that_the_compiler_would_give_them(launcher: Launcher) -> None:
    _once(launcher)
    for umask in (0o022, 0o077):
        os.unlink("a.out")
        before = os.umask(umask)
        try:
            launcher.run("fakecc", "a.txt", "-o", "a.out")
        finally:
            os.umask(before)
        assert launcher.last().hit == (umask == 0o022)
        assert stat.S_IMODE(os.stat("a.out").st_mode) == 0o666 & ~umask


def test_an_executable_output_stays_one(launcher: Launcher) -> None:
    write("in", "#!/bin/sh\n")
    line = ["sh", "-c", "cp in out; chmod 755 out; cp in odd; chmod 604 odd"]
    options = ["--input", "in", "--output", "out", "--output", "odd"]
    launcher.run(*line, options=options)
    for name in ("out", "odd"):
        os.unlink(name)
    launcher.run(*line, options=options)
    assert launcher.last().hit
    assert os.access("out", os.X_OK)
    assert stat.S_IMODE(os.stat("odd").st_mode) == 0o604


@pytest.mark.parametrize("code", [1, 3, 77])
def test_a_failure_is_passed_on_and_not_cached(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    write("a.txt", "x")
    monkeypatch.setenv("FAKE_EXIT", str(code))
    for _ in range(2):
        assert launcher.run("fakecc", "a.txt", "-o", "a.out") == (code, "", "bad input\n")
    assert launcher.reasons() == ["error:stage-raised"] * 2
    assert launcher.compiled() == 2


def test_several_outputs_and_a_folder(launcher: Launcher) -> None:
    write("in", "content")
    line = ["sh", "-c", "cp in one; mkdir -p d/e; cp in d/e/f; ln -sf e/f d/link; ln -sf /etc d/out; : > d/empty"]
    options = ["--input=in", "--output=one", "--output=d"]
    launcher.run(*line, options=options)
    shutil.rmtree("d")
    os.unlink("one")
    launcher.run(*line, options=options)
    assert launcher.last().hit
    assert Path("d/e/f").read_text() == Path("one").read_text() == "content"
    assert (os.readlink("d/link"), os.readlink("d/out")) == ("e/f", "/etc")
    assert Path("d/empty").read_bytes() == b""


def test_a_folder_given_back_leaves_what_else_is_there(launcher: Launcher) -> None:
    line = ["sh", "-c", "mkdir -p d; echo made > d/made"]
    launcher.run(*line, options=["--output=d"])
    write("d/mine", "mine")
    os.unlink("d/made")
    launcher.run(*line, options=["--output=d"])
    assert launcher.last().hit
    assert sorted(os.listdir("d")) == ["made", "mine"]


def test_hard_links_only_when_asked_for(launcher: Launcher) -> None:
    _once(launcher)
    os.unlink("a.out")
    launcher.run("fakecc", "a.txt", "-o", "a.out")
    assert os.stat("a.out").st_nlink == 1
    os.unlink("a.out")
    launcher.run("fakecc", "a.txt", "-o", "a.out", options=["--hardlink"])
    assert os.stat("a.out").st_nlink == 2
    assert stat.S_IMODE(os.stat("a.out").st_mode) == 0o444


def test_a_link_in_the_place_of_an_output_is_written_through(launcher: Launcher) -> None:
    _once(launcher)
    os.mkdir("real")
    os.symlink("real/target", "link.out")
    for _ in range(2):
        write("real/target", "old")
        launcher.run("fakecc", "a.txt", "-o", "link.out")
        assert os.readlink("link.out") == "real/target"
        assert Path("real/target").read_bytes() == Path("a.out").read_bytes()


def test_binary_streams_of_any_size(launcher: Launcher) -> None:
    line = ["sh", "-c", "head -c 300000 /dev/zero; printf '\\001\\000x' >&2; : > out"]
    first = launcher.run(*line, options=["--output=out"])
    second = launcher.run(*line, options=["--output=out"])
    assert launcher.last().hit
    assert first == second == (0, "\0" * 300000, "\1\0x")


def test_standard_input_is_an_input(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = os.dup(0)
    seen = []
    try:
        for text in ("one", "two", "one"):
            source = os.open(write("in", text), os.O_RDONLY)
            os.dup2(source, 0)
            os.close(source)
            with warnings.catch_warnings(action="error"):  # the file that keeps it is nobody's argument
                seen.append((launcher.run("cat", "-").stdout, launcher.last().reason.value))
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert seen == [("one", "miss:new-input"), ("two", "miss:file-changed"), ("one", "hit")]


def test_a_command_gets_no_standard_input_that_is_not_described(launcher: Launcher) -> None:
    assert launcher.run("sh", "-c", "wc -c > out", options=["--output=out"]).code == 0
    assert Path("out").read_text().strip() == "0"


@pytest.mark.parametrize(
    ("mode", "reasons", "runs"),
    [
        ("on", ["miss:new-input", "hit", "hit"], 1),
        ("refresh", ["miss:new-input", "miss:refresh", "hit"], 2),
        ("verify", ["miss:new-input", "miss:verified", "hit"], 2),
        ("read-only", ["miss:new-input", "hit", "hit"], 1),
        ("require", ["miss:new-input", "hit", "hit"], 1),
    ],
)
@pytest.mark.sampled
def test_modes(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, mode: str, reasons: list[str], runs: int) -> None:
    _once(launcher)
    monkeypatch.setenv("CACHEC_MODE", mode)
    assert launcher.run("fakecc", "a.txt", "-o", "a.out").code == 0
    monkeypatch.setenv("CACHEC_MODE", "on")
    launcher.run("fakecc", "a.txt", "-o", "a.out")
    assert launcher.reasons() == reasons
    assert launcher.outcomes()[1].detail == ""
    assert launcher.compiled() == runs


def test_mode_require_fails_instead_of_compiling(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.txt", "x")
    monkeypatch.setenv("CACHEC_MODE", "require")
    ran = launcher.run("fakecc", "a.txt", "-o", "a.out")
    assert ran.code == 2
    assert "would miss in mode 'require'" in ran.stderr
    assert launcher.compiled() == 0


def test_mode_read_only_stores_nothing(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.txt", "x")
    monkeypatch.setenv("CACHEC_MODE", "read-only")
    for _ in range(2):
        assert launcher.run("fakecc", "a.txt", "-o", "a.out").code == 0
    assert launcher.compiled() == 2
    assert not (launcher.store / "objects").exists()


def test_verify_finds_a_compiler_that_makes_something_else(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ["sh", "-c", "echo $$ > out"]
    launcher.run(*line)
    monkeypatch.setenv("CACHEC_MODE", "verify")
    launcher.run(*line)
    assert launcher.last().reason.value == "miss:verify-differs"
    monkeypatch.setenv("CACHEC_MODE", "on")
    launcher.run(*line)
    assert not launcher.last().hit


def test_an_input_that_changes_during_the_compile_keeps_the_result_out(launcher: Launcher) -> None:
    write("in", "x")
    line = ["sh", "-c", "cp in out; echo more >> in"]
    assert launcher.run(*line, options=["--input=in", "--output=out"]).code == 0
    assert launcher.last().reason.value == "bypass:input-changed-during-run"
    assert not launcher.last().stored
    assert Path("out").read_text() == "x"


def test_a_flag_that_turns_out_to_name_an_output(launcher: Launcher) -> None:
    tool = launcher.folder.parent / "bin" / "fakecc"
    tool.write_text("#!/bin/sh\ncp a.txt a.out\necho report > report.txt\n")
    write("a.txt", "x")
    for kind in ("miss", "hit"):
        launcher.run("fakecc", "a.txt", "-o", "a.out", "--report=report.txt")
        assert launcher.last().reason.kind == kind
        assert Path("report.txt").read_text() == "report\n"
        os.unlink("report.txt")


def test_an_output_that_was_not_written_is_told_and_not_stored(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CACHEC_LOG", "miss")
    write("a.txt", "x")
    line = ["sh", "-c", "echo fine; [ -e out ] || cp a.txt out"]
    for _ in range(2):
        write("out", "of an older build")
        assert launcher.run(*line, options=["--output=out"]) == (0, "fine\n", "")
        assert launcher.last().reason.value == "bypass:undescribed-effect"
    assert "/work/out was not written" in caplog.text
    os.unlink("out")
    for reason in ("miss", "hit"):
        launcher.run(*line, options=["--output=out"])
        assert launcher.last().reason.kind == reason
        assert Path("out").read_text() == "x"
        os.unlink("out")


def test_the_store_failing_is_a_miss_and_no_more(launcher: Launcher) -> None:
    _once(launcher)
    for path in (launcher.store / "objects").glob("*/*"):
        path.unlink()
    os.unlink("a.out")
    assert launcher.run("fakecc", "a.txt", "-o", "a.out").code == 0
    assert launcher.last().reason.value == "miss:artifact-missing"
    assert Path("a.out").exists()


def test_an_unreadable_input_is_for_the_compiler_to_tell(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.txt", "x")

    def refuse(*_: object) -> str:
        raise PermissionError(13, "Permission denied", "a.txt")

    monkeypatch.setattr(FileDigests, "of_path", refuse)
    assert "cachec: error: fakecc a.txt -o a.out" in launcher.run("fakecc", "a.txt", "-o", "a.out").stderr
    assert launcher.last().reason.value == "bypass:not-understood"
    assert "Permission denied: 'a.txt'" in launcher.last().detail


def test_names_that_are_not_utf8_pass_through(launcher: Launcher) -> None:
    name = os.fsdecode(b"a\xff.txt")
    Path(name).write_text("x")
    launcher.run("fakecc", name, "-o", "a.out")
    assert launcher.last().reason.value == "bypass:not-understood"
    assert "is not UTF-8" in launcher.last().detail


def test_a_store_that_cannot_be_written_is_told_as_one(launcher: Launcher) -> None:
    write("a.txt", "x")
    launcher.run("fakecc", "a.txt", "-o", "a.out")
    shutil.rmtree(launcher.store / "locks")
    (launcher.store / "locks").mkdir(mode=0o700)
    for number in range(256):
        (launcher.store / "locks" / f"{number:02x}").write_bytes(b"no folder")  # as root too nothing can be made there
    assert launcher.run("fakecc", "a.txt", "-o", "a.out").code == 0
    assert launcher.last().reason.value == "hit"
    assert launcher.run("fakecc", "a.txt", "-O2", "-o", "a.out").code == 0
    outcome = launcher.last()
    assert (outcome.reason, outcome.stored) == (Reason.STORE_UNAVAILABLE, False)
    assert outcome.fault is not None
    assert "locks" in outcome.detail
