"""No output that a command wrote is left out: each is stored, or nothing is."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cachec.launcher import result
from tests.launcher.conftest import Launcher, wait_for_clock, write
from tests.needs import need

SOURCES = {"a.c": '#include "a.h"\nint f(int x) { int y[9] = {x}; return y[x] + A; }\n', "a.h": "#define A 1\n"}

#: Lines of clang that write more than one file, or one that no argument names.
CLANG = [
    "-S -c a.c",
    "--serialize-diagnostics F -MD -c a.c -o sub/b.o",
    "-MMD -c a.c -o sub/b.x.o",
    "-save-temps=obj -c a.c -o sub/b.o",
    "-g -gsplit-dwarf -c a.c --coverage -o sub/b.o",
    "-O1 -c a.c -Xclang -opt-record-file -Xclang r.yaml -ftime-trace -fstack-usage",
    "-c a.c -MJ part.json",
    "-c a.c @extra.rsp",
]


def _files() -> dict[str, bytes]:
    found = (path for path in Path().rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in sorted(found)}


def _emptied() -> None:
    for path in list(Path().iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, text in SOURCES.items():
        write(name, text)
    write("extra.rsp", "-MD --serialize-diagnostics G\n")
    os.mkdir("sub")
    wait_for_clock()


@pytest.mark.parametrize("line", CLANG)
@pytest.mark.sampled
def test_clang_leaves_the_same_files_with_and_without_a_cache(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    need("clang-19")

    def run(program: str, argv: Sequence[str], stdin: int | None) -> int:
        del stdin
        return subprocess.run([program, *argv[1:]], check=False, capture_output=True).returncode

    monkeypatch.setattr(result, "pass_through", run)
    command = ["clang-19", *line.split()]
    _emptied()
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    bare = _files()
    for _ in range(2):
        _emptied()
        for name in bare.keys() - SOURCES.keys() - {"extra.rsp"}:
            write(name, "of an older build")
        assert launcher.run(*command).code == 0
        found = _files()
        assert found.keys() == bare.keys()
        stale = {name for name, data in found.items() if data == b"of an older build"}
        assert not stale
        assert found["a.o" if "a.o" in found else next(iter(found))] is not None


def test_the_result_of_each_common_line_is_stored(launcher: Launcher) -> None:
    """Those above are not all left to the compiler."""
    need("clang-19")
    _emptied()
    for line in ("-S a.c", CLANG[1], "-MD -c a.c"):
        for expected in ("miss", "hit"):
            launcher.run("clang-19", *line.split())
            assert launcher.last().reason.kind == expected, line


#: A compiler that writes more than it is asked for: each name behind `+`.
SIDECC = """#!/bin/sh
for word; do case "$word" in +*) echo side > "${word#+}" ;; *.txt) in=$word ;; -o) ;; *) out=$word ;; esac; done
cat "$in" > "$out"
"""


def test_what_an_adapter_does_not_name_is_an_output_too(launcher: Launcher, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "sidecc"
    tool.write_text(SIDECC)
    tool.chmod(0o755)
    adapter = 'match = ["sidecc"]\nflags = [\n  { names = ["-o"], takes = ["next"], is = "output" },\n]\n'
    (tmp_path / "cachec.toml").write_text(f"[adapters.sidecc]\n{adapter}")
    write("src/a.txt", "x\n")
    os.mkdir("out")
    line = ("sidecc", "src/a.txt", "-o", "out/b.o", "+out/b.o.dwo")
    for expected in ("miss", "hit"):
        write("out/b.o.dwo", "of an older build")
        launcher.run(*line)
        assert launcher.last().reason.kind == expected
        assert Path("out/b.o.dwo").read_text() == "side\n"


def test_an_output_in_a_folder_that_went_is_counted_once(launcher: Launcher) -> None:
    write("a.txt", "x")
    os.mkdir("out")
    line = ("fakecc", "a.txt", "-o", "out/a.out")
    launcher.run(*line)
    shutil.rmtree("out")
    assert launcher.direct(*line) is None
    launcher.run(*line)
    assert launcher.reasons()[1:] == ["bypass:undescribed-effect"]


#: A mode of a file that is in the place of an output. The umask of these tests is 022.
MODES = [0o600, 0o640, 0o664, 0o700, 0o755, 0o644, 0o666]


@pytest.fixture
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def _status(path: str) -> tuple[int, str]:
    return stat.S_IMODE(os.stat(path).st_mode), Path(path).read_text()


@pytest.mark.usefixtures("_umask")
@pytest.mark.parametrize("line", [("fakecc", "a.txt", "-o", "a.out"), ("sh", "-c", "cp a.txt new; mv -f new a.out")])
def test_a_file_of_another_mode_in_the_place_of_an_output_is_left_to_the_command(
    launcher: Launcher, line: tuple[str, ...]
) -> None:
    write("a.txt", "x\n")
    write("a.out", "old")
    launcher.run(*line)
    for mode in MODES:
        for run in (launcher.run, launcher.direct):
            write("other", "old").chmod(mode)
            os.rename("other", "a.out")
            is_hit = mode == 0o644
            assert bool(run(*line)) == (is_hit or run == launcher.run)
            assert launcher.last().reason.value == ("hit" if is_hit else "bypass:undescribed-effect")
            assert (_status("a.out") == (mode, "old")) == (not is_hit)
    assert sorted(launcher.reasons()[1:]) == [*["bypass:undescribed-effect"] * (len(MODES) - 1), "hit", "hit"]


@pytest.mark.usefixtures("_umask")
@pytest.mark.parametrize(("mode", "script", "counts"), [
    (0o644, "echo > a.out", False), (0o600, "echo > a.out", True), (0o600, "echo > n; mv -f n a.out", False),
    (0o600, ": > a.out; chmod g+w a.out", True), (0o600, "rm -f a.out; echo > a.out", False),
])  # fmt: skip
def test_the_mode_of_a_file_that_a_command_writes_to_counts_where_a_new_one_has_another(
    launcher: Launcher, mode: int, script: str, counts: bool
) -> None:
    line, options = ("sh", "-c", script), ["--outputs", "a.out"]
    write("a.out", "old").chmod(mode)
    launcher.run(*line, options=options)
    assert launcher.last().stored
    after = _status("a.out")
    Path("a.out").unlink()
    launcher.run(*line, options=options)
    assert launcher.last().hit == (not counts)
    if counts:
        assert _status("a.out")[0] == (0o664 if "chmod" in script else 0o644)
    else:
        assert _status("a.out") == after


@pytest.mark.usefixtures("_umask")
def test_a_folder_of_another_mode_is_left_to_the_command(launcher: Launcher) -> None:
    line = ("sh", "-c", "mkdir out 2> /dev/null; echo 1 > out/a")
    launcher.run(*line, options=["--outputs", "out"])
    assert launcher.last().stored
    for mode in (0o755, 0o700):
        shutil.rmtree("out")
        os.mkdir("out")
        os.chmod("out", mode)
        launcher.run(*line, options=["--outputs", "out"])
        assert launcher.last().reason.value == ("hit" if mode == 0o755 else "bypass:undescribed-effect")


_CLEANERS = {
    "made anew": "rm -rf gen; mkdir -p gen/sub; for i in $(cat list); do echo $i > gen/$i; echo $i > gen/sub/$i; done",
    "emptied": "mkdir -p gen/sub; find gen -type f -delete; for i in $(cat list); do echo $i > gen/sub/$i; done",
}


@pytest.mark.parametrize("way", _CLEANERS)
def test_a_declared_folder_that_the_command_empties(launcher: Launcher, way: str) -> None:
    """What it writes there may lie there; where anything else does, a hit would leave that."""

    def run() -> str:
        launcher.run("sh", "-c", _CLEANERS[way], options=["--outputs", "gen"])
        found = {path.name for path in Path("gen").rglob("*") if path.is_file()}
        assert found == set(Path("list").read_text().split())
        return launcher.last().reason.value.partition(":")[0]

    write("list", "a b")
    assert [run(), run(), run()] == ["miss", "hit", "hit"]
    shutil.rmtree("gen")
    assert run() == "hit"
    Path("gen/sub/a").unlink()
    assert run() == "hit"
    for other in ("gen/other", "gen/sub/other"):
        write(other, "")
        assert [run(), run()] == ["bypass", "hit"]
    write("list", "a")
    assert [run(), run(), run()] == ["bypass", "miss", "hit"]


def test_a_declared_folder_that_is_a_link(launcher: Launcher) -> None:
    line, options = ("sh", "-c", "rm -rf gen; mkdir gen; echo 1 > gen/a"), ["--outputs", "gen"]
    launcher.run(*line, options=options)
    shutil.rmtree("gen")
    os.mkdir("other")
    os.symlink("other", "gen")
    launcher.run(*line, options=options)
    assert launcher.last().reason.value == "bypass:undescribed-effect"


def test_a_declared_folder_of_several_commands(launcher: Launcher) -> None:
    """What others write there does not count for one that asks for no more than the folder."""
    options = ["--outputs", "build"]
    for reason in ("miss", "hit"):
        for name in ("a", "b"):
            launcher.run("sh", "-c", f"mkdir -p build; echo {name} > build/{name}", options=options)
            assert launcher.last().reason.value.partition(":")[0] == reason


def test_a_link_to_a_folder_that_the_command_makes_counts(launcher: Launcher) -> None:
    line = ("sh", "-c", "mkdir -p made; echo 1 > way/a.out")
    for options in ([], ["--outputs", "made", "--outputs", "other"]):
        for target in ("made", "first", "made"):  # by another link the second time
            shutil.rmtree("made", ignore_errors=True)
            Path("way").unlink(missing_ok=True)
            os.symlink(target, "way")
            Path("first").unlink(missing_ok=True)
            os.symlink("made", "first")
            launcher.run(*line, options=options)
            assert Path("made/a.out").read_text() == "1\n"
        Path("way").unlink()
        os.symlink("first", "way")
        for folder in ("made", "other"):
            shutil.rmtree("made", ignore_errors=True)
            os.makedirs("other", exist_ok=True)
            Path("first").unlink()
            os.symlink(folder, "first")
            launcher.run(*line, options=options)
            assert Path("other/a.out").exists() == (folder == "other")
        Path("other/a.out").unlink()


def test_an_output_with_a_second_name_is_left_to_the_command(launcher: Launcher) -> None:
    write("a.txt", "x\n")
    line = ("fakecc", "a.txt", "-o", "a.out")
    launcher.run(*line)
    for run in (launcher.run, launcher.direct):
        Path("a.out").unlink()
        write("kept", "old")
        os.link("kept", "a.out")
        assert bool(run(*line)) == (run == launcher.run)
        assert launcher.reasons()[1:] == ["bypass:undescribed-effect"]
        assert Path("a.out").read_text() == Path("kept").read_text() == "old"


def test_a_hit_that_has_no_place_has_one_record(launcher: Launcher) -> None:
    write("a.txt", "x\n")
    line = ("fakecc", "a.txt", "-o", "a.out")
    launcher.run(*line)
    Path("a.out").unlink()
    os.mkdir("a.out")
    assert launcher.direct(*line) is None
    launcher.run(*line)
    assert launcher.reasons()[1:] == ["bypass:undescribed-effect"]


#: A command line -> its outputs.
COMPILERS = {
    "clang-19 -c a.c -o OUT/o -MD -MF OUT/d -serialize-diagnostics OUT/dia": ["o", "d", "dia"],
    "llc-19 a.ll -o OUT/o": ["o"],
    "mlir-opt-19 a.mlir -o OUT/o": ["o"],
    "mlir-translate-19 --mlir-to-llvmir e.mlir -o OUT/o": ["o"],
    "iree-opt a.mlir -o OUT/o": ["o"],
}


@pytest.mark.usefixtures("_umask")
@pytest.mark.parametrize(
    "line", [line if "iree" not in line else pytest.param(line, marks=pytest.mark.long) for line in COMPILERS]
)
@pytest.mark.sampled
def test_a_compiler_leaves_old_outputs_the_same_with_and_without_a_cache(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    # The compilers that pip installs are beside this interpreter.
    monkeypatch.setenv("PATH", os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"])))
    need(line.split(maxsplit=1)[0])

    def run(program: str, argv: Sequence[str], stdin: int | None) -> int:
        del stdin
        return subprocess.run([program, *argv[1:]], check=False, capture_output=True).returncode

    monkeypatch.setattr(result, "pass_through", run)
    write("a.c", "int f(void) { return 1; }\n")
    write("a.ll", "define i32 @f() {\n  ret i32 1\n}\n")
    write("e.mlir", "module {}\n")
    write("a.mlir", "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n")
    wait_for_clock()
    os.mkdir("out")
    argv = line.replace("OUT", "out").split()
    assert launcher.run(*argv).code == 0
    for mode, has_link in ((0o600, False), (0o755, False), (0o644, True)):
        found = []
        for road in ("bare", "full", "direct"):
            shutil.rmtree("out")
            os.mkdir("out")
            for name in COMPILERS[line]:
                write(f"out/{name}", "old").chmod(mode)
                if has_link:
                    os.link(f"out/{name}", f"out/{name}.kept")
            if road == "bare":
                subprocess.run(argv, check=True, capture_output=True)
            elif road == "full" or launcher.direct(*argv) is None:
                assert launcher.run(*argv).code == 0
            found.append({path.name: (path.stat().st_mode, path.read_bytes()) for path in Path("out").iterdir()})
        assert found[1] == found[0]
        assert found[2] == found[0]


def test_a_link_in_the_place_of_a_folder_that_is_made_anew(launcher: Launcher) -> None:
    """``rmtree`` removes the folder, and leaves the link: then ``mkdir`` fails."""
    text = (
        "import os, shutil; shutil.rmtree('made', ignore_errors=True); os.mkdir('made'); open('made/it', 'w').close()"
    )
    for _ in range(2):
        os.makedirs("made", exist_ok=True)
        assert launcher.run("python3", "-c", text).code == 0
    os.rename("made", "aside")
    os.symlink("aside", "made")
    assert launcher.run("python3", "-c", text).code == 1
