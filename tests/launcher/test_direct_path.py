"""The direct path returns the answers of the whole path, and none after a change of its conditions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cachec import config
from cachec.base import fsio
from cachec.launcher import direct, execute
from cachec.store.store import Store
from tests.launcher.conftest import Launcher, Ran, need, write

_LINE = ("fakecc", "a.txt", "-o", "a.out")


@pytest.fixture
def known(launcher: Launcher) -> Launcher:
    """One command line was answered."""
    write("a.txt", "source\n")
    write("extra.txt", "extra\n")
    assert launcher.run(*_LINE, "-l", "extra.txt").code == 0
    return launcher


def _direct(launcher: Launcher) -> Ran | None:
    return launcher.direct(*_LINE, "-l", "extra.txt")


def _memo(launcher: Launcher) -> Path:
    (path,) = (launcher.store / "direct").glob("*/*")
    return path


def test_it_answers_as_the_whole_road_does(known: Launcher) -> None:
    made = Path("a.out").read_bytes()
    os.unlink("a.out")
    assert _direct(known) == (0, "compiled\n", "warning: fake\n")
    assert Path("a.out").read_bytes() == made
    assert known.compiled() == 1
    first, second = known.outcomes()
    assert second.hit
    assert (second.stage, second.key) == (first.stage, first.key)
    assert second.saved > 0
    assert time.time() - second.time < 60
    assert 0 < second.seconds < 10


def test_an_identical_output_is_new_unless_restat_is_said(known: Launcher) -> None:
    for options in ([], ["--restat"]):
        known.run(*_LINE, "-l", "extra.txt", options=options)
        os.utime("a.out", (1, 1))
        assert known.direct(*_LINE, "-l", "extra.txt", options=options) is not None
        assert (os.stat("a.out").st_mtime == 1) == bool(options)


@pytest.mark.parametrize("given", ["~/two", "", "../three/./four"])
def test_each_build_has_a_stats_file_of_its_own(known: Launcher, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    (known.folder.parent / "three").mkdir()
    monkeypatch.setenv("CACHEC_STATS_FILE", given)
    assert _direct(known) is not None
    assert known.run(*_LINE, "-l", "extra.txt").code == 0  # the whole road, and a memo with the variable set
    assert _direct(known) is not None
    wanted = config.load().stats_file
    records = [] if wanted is None else wanted.read_bytes().splitlines()
    assert len(records) == (3 if given else 0)
    monkeypatch.delenv("CACHEC_STATS_FILE")
    assert _direct(known) is not None
    assert wanted is None or len(wanted.read_bytes().splitlines()) == 3


def test_the_stats_file_of_the_settings_is_back_where_the_variable_is_gone(
    known: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = known.folder.parent / "cachec.toml"
    settings.write_text('stats_file = "of-all"\n' + settings.read_text())
    monkeypatch.setenv("CACHEC_STATS_FILE", "of-one")
    assert known.run(*_LINE, "-l", "extra.txt").code == 0
    monkeypatch.delenv("CACHEC_STATS_FILE")
    assert _direct(known) is not None
    assert [len(path.read_bytes().splitlines()) for path in (settings.with_name("of-all"), Path("of-one"))] == [1, 1]


def test_a_setting_that_is_wrong_is_told_once_the_variable_before_it_is_gone(
    known: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = known.folder.parent / "cachec.toml"
    settings.write_text('stats_file = "/nonexistent/of-all"\n' + settings.read_text())
    monkeypatch.setenv("CACHEC_STATS_FILE", "of-one")
    assert known.run(*_LINE, "-l", "extra.txt").code == 0
    monkeypatch.delenv("CACHEC_STATS_FILE")
    assert _direct(known) is None
    assert known.run(*_LINE, "-l", "extra.txt").code == 2


def test_an_answer_from_another_store_leaves_no_memo_for_this_one(launcher: Launcher, tmp_path: Path) -> None:
    write("a.txt", "source\n")
    assert execute.main(["--", *_LINE], {"dir": str(tmp_path / "other")}) == 0
    assert launcher.direct(*_LINE) is None


def _same_size_and_times(path: Path) -> None:
    before = path.stat()
    path.write_bytes(path.read_bytes().swapcase())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _append(path: Path) -> None:
    path.write_text(path.read_text() + "# more\n")


#: What changes a file that a command rests on.
CHANGES: tuple[tuple[str, Callable[[Path], object]], ...] = (
    ("a.txt", _append),
    ("extra.txt", _append),
    ("a.txt", _same_size_and_times),
    ("extra.txt", Path.unlink),
    ("../bin/fakecc", _append),
    ("../cachec.toml", _append),
    ("../fakecc.toml", _append),
    ("pyproject.toml", lambda path: path.write_text("[project]\n")),
)


def test_a_change_of_what_it_rests_on_and_back(known: Launcher) -> None:
    for name, change in CHANGES:
        path = Path(name)
        before = path.read_bytes() if path.exists() else None
        mode = path.stat().st_mode if path.exists() else 0
        change(path)
        assert _direct(known) is None, name
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)
            path.chmod(mode)
        known.run(*_LINE, "-l", "extra.txt")
        assert known.last().hit, name
        assert _direct(known) is not None, name
    os.utime("a.txt")
    assert _direct(known) is not None


def test_another_call(known: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    assert known.direct(*_LINE) is None
    assert known.direct(*_LINE, "-l", "extra.txt", "-O2") is None
    names = ("FAKE_OPT", "FAKE_HIDDEN", "LD_LIBRARY_PATH", "CACHEC_NAMESPACE", "CACHEC_NEW", "PATH", "HOME", "TERM")
    for name in names:
        with monkeypatch.context() as changed:
            changed.setenv(name, "/other")
            assert (_direct(known) is None) == (name != "TERM"), name
    shutil.copytree(".", "../elsewhere")
    monkeypatch.chdir("../elsewhere")
    assert _direct(known) is None


def test_another_compiler_that_comes_first_in_path(known: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    first = known.store.parent / "first"
    first.mkdir()
    monkeypatch.setenv("PATH", f"{first}:{os.environ['PATH']}")
    assert known.run(*_LINE, "-l", "extra.txt").code == 0
    assert _direct(known) is not None
    shutil.copy(known.store.parent / "bin" / "fakecc", first / "fakecc")
    assert _direct(known) is None


def test_other_modes_take_the_whole_road(known: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in ("off", "refresh", "verify", "read-only"):
        monkeypatch.setenv("CACHEC_MODE", mode)
        assert _direct(known) is None
        if mode != "off":
            known.run(*_LINE, "-l", "extra.txt")
            assert _direct(known) is None


@pytest.mark.parametrize("change", ["invalidate", "quarantine"])
def test_an_entry_that_is_gone(known: Launcher, change: str) -> None:
    store = Store(known.store)
    key = known.last().key
    assert store.invalidate(key) if change == "invalidate" else store.quarantine(key, "wrong")
    store.close()
    assert _direct(known) is None


def test_an_index_that_is_damaged_or_gone(known: Launcher) -> None:
    (known.store / "index" / "cache.db").write_bytes(b"not a database" * 1000)
    assert _direct(known) is None
    shutil.rmtree(known.store / "index")
    assert _direct(known) is None


def test_artifacts_that_are_gone_or_damaged(known: Launcher) -> None:
    made = Path("a.out").read_bytes()
    (object_,) = (path for path in (known.store / "objects").glob("*/*") if path.read_bytes() == made)
    object_.chmod(0o644)
    object_.write_bytes(b"?" * len(made))
    os.unlink("a.out")
    assert _direct(known) is None
    assert not Path("a.out").exists()
    object_.unlink()
    assert _direct(known) is None
    assert known.run(*_LINE, "-l", "extra.txt").code == 0
    assert Path("a.out").read_bytes() == made


@pytest.mark.long
def test_a_memo_that_is_cut_or_damaged_anywhere(known: Launcher) -> None:
    path = _memo(known)
    data = path.read_bytes()
    step = max(1, len(data) // 300)
    for length in range(0, len(data), step):
        path.write_bytes(data[:length])
        assert _direct(known) is None, length
    for at in range(0, len(data), step):
        path.write_bytes(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])
        assert _direct(known) is None, at
    path.write_bytes(data)
    assert _direct(known) is not None


def test_a_memo_of_another_version_or_boot(known: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("__version__", "0.0.0"), ("BOOT_ID", write(str(tmp_path / "boot"), "other\n"))):
        with monkeypatch.context() as changed:
            changed.setattr(direct, name, value)
            assert _direct(known) is None


def test_a_quiet_index_is_looked_into_once(
    known: Launcher, monkeypatch: pytest.MonkeyPatch, seconds_later: Callable[[float], None]
) -> None:
    seconds_later(2.1)
    looked: list[str] = []
    look = direct._read_row
    monkeypatch.setattr(direct, "_read_row", lambda *args: looked.append(args[0]) or look(*args))
    assert all(_direct(known) is not None for _ in range(3))
    assert len(looked) == 1
    store = Store(known.store)
    store.invalidate(known.last().key)
    store.close()
    assert _direct(known) is None


def test_a_row_is_found_while_the_log_has_content(known: Launcher) -> None:
    store = Store(known.store)
    store.index.write("other", b"value", "tag")
    assert store.index.read("other") == b"value"  # the connection stays open, and so does the log
    try:
        assert _direct(known) is not None
    finally:
        store.close()


def test_what_has_no_memo(launcher: Launcher) -> None:
    write("in/file", "x")
    for line, options in (
        (["sh", "-c", "mkdir -p d; : > d/x"], ["--output=d"]),
        (["sh", "-c", ": > x"], ["--output=x", "--input=in"]),
        (["sh", "-c", ": > x"], ["--output=x", "--hardlink"]),
    ):
        assert launcher.run(*line, options=options).code == 0
        assert launcher.direct(*line, options=options) is None


def test_an_output_that_cannot_be_written_is_left_to_the_whole_road(known: Launcher) -> None:
    os.unlink("a.out")
    os.mkdir("a.out")
    assert _direct(known) is None


_SLOW = {
    *("typing", "re", "json", "msgspec", "numpy", "click", "subprocess", "argparse", "tomllib", "sqlite3", "pathlib"),
}


def test_nothing_slow_is_imported() -> None:
    code = "import sys, cachec.launcher.direct, _sqlite3; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not _SLOW & set(found)


def test_a_check_of_what_it_answers_imports_nothing_slow_and_leaves_all_as_it_is(known: Launcher) -> None:
    line = ["cachec", "check", "--", *_LINE, "-l", "extra.txt"]
    code = (
        "import atexit, sys; from cachec.__main__ import main; "
        f"sys.argv = {line}; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
    )
    os.unlink("a.out")
    before = known.outcomes()
    environ = {**os.environ, "PYTHONCOERCECLOCALE": "0"}  # or Python sets LC_CTYPE
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout == "hit\n"
    assert not _SLOW & set(done.stderr.split())
    assert known.outcomes() == before
    assert not os.path.exists("a.out")


@pytest.mark.parametrize("change", [lambda: write("a.txt", "other\n"), lambda: os.unlink("extra.txt")])
def test_a_check_after_a_change_is_left_to_the_whole_road(known: Launcher, change: Callable[[], object]) -> None:
    args = ["--", *_LINE, "-l", "extra.txt"]
    assert direct.would_answer(args)
    assert not direct.would_answer(["--json", *args])
    change()
    assert not direct.would_answer(args)


def test_response_files_and_values_that_come_to_be_files(launcher: Launcher, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "fakecc"
    read = '    @*) flags="$flags $(cat "${1#@}" inner.rsp)" ;;\n    generic) [ -e generic ] || : ;;\n    -*)'
    tool.write_text(tool.read_text().replace("    -*)", read))
    write("a.txt", "x")
    write("outer.rsp", "-O2 @inner.rsp")
    write("inner.rsp", "-O3")
    line = ("fakecc", "a.txt", "-o", "a.out", "@outer.rsp", "--cpu", "generic")
    assert launcher.run(*line).code == 0
    assert launcher.direct(*line) is not None
    for name in ("inner.rsp", "outer.rsp"):
        before = Path(name).read_text()
        write(name, "-O1")
        assert launcher.direct(*line) is None
        write(name, before)
        assert launcher.direct(*line) is not None
    write("generic", "")
    assert launcher.direct(*line) is None
    os.unlink("generic")
    assert launcher.direct(*line) is not None


def test_an_interpreter_that_comes_first_in_path(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = launcher.store.parent / "bin" / "fakecc"
    tool.write_text(tool.read_text().replace("#!/bin/sh", "#!/usr/bin/env sh", 1))
    first = launcher.store.parent / "first"
    first.mkdir()
    monkeypatch.setenv("PATH", f"{first}:{os.environ['PATH']}")
    write("a.txt", "x")
    assert launcher.run(*_LINE).code == 0
    assert launcher.direct(*_LINE) is not None
    (first / "sh").write_text("#!/bin/sh\n")
    (first / "sh").chmod(0o755)
    assert launcher.direct(*_LINE) is None


def test_a_link_to_the_compiler_that_comes_to_lead_elsewhere(launcher: Launcher, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "fakecc"
    for name in ("one", "two"):
        shutil.copy(tool, tmp_path / name)
    tool.unlink()
    tool.symlink_to(tmp_path / "one")
    write("a.txt", "x")
    assert launcher.run(*_LINE).code == 0
    assert launcher.direct(*_LINE) is not None
    (tmp_path / "two").write_text((tmp_path / "two").read_text() + "# new\n")
    tool.unlink()
    tool.symlink_to(tmp_path / "two")
    assert launcher.direct(*_LINE) is None


@need("gcc")
def test_a_library_of_the_compiler_that_is_built_anew(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsio, "is_settled", lambda *_: True)  # else folders that were just made are not trusted

    def build(*words: str, text: str) -> None:
        subprocess.run(["gcc", "-xc", "-", *words], input=text, text=True, check=True, cwd=tmp_path)

    library = tmp_path / "lib" / "libanswer.so"
    library.parent.mkdir()
    for answer in "ab":
        build("-shared", "-fPIC", "-o", str(tmp_path / answer), text=f"char answer(void) {{ return '{answer}'; }}")
    shutil.copy(tmp_path / "a", library)
    caller = 'extern char answer(void);\nint main(int n, char **v) { fputc(answer(), fopen(v[3], "w")); return 0; }'
    words = ("-o", str(tmp_path / "bin" / "fakecc"), "-Wl,-rpath,$ORIGIN/../lib", "-xnone", str(library))
    build(*words, text=f"#include <stdio.h>\n{caller}")
    write("a.txt", "x")
    for answer in "ab":
        library.write_bytes((tmp_path / answer).read_bytes())
        assert launcher.direct(*_LINE) is None
        assert launcher.run(*_LINE).code == 0
        assert launcher.direct(*_LINE) is not None
        assert Path("a.out").read_text() == answer
