"""No output that a command wrote is left out: each is stored, or nothing is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from cachec.launcher import ending
from tests.launcher.conftest import Launcher, wait_for_clock, write
from tests.needs import need

SOURCES = {"a.c": '#include "a.h"\nint f(int x) { int y[9] = {x}; return y[x] + A; }\n', "a.h": "#define A 1\n"}

#: Lines of clang that write more than one file, or one that no argument names.
CLANG = [
    "--serialize-diagnostics F -c a.c",
    "-c a.c",
    "-S a.c",
    "-S -c a.c",
    "-c a.c -o sub/b.o",
    "-serialize-diagnostics F -c a.c",
    "--serialize-diagnostics F -c a.c -o sub/b.o",
    "--serialize-diagnostics F -MD -c a.c",
    "--serialize-diagnostics F -MD -c a.c -o sub/b.o",
    "-MD -c a.c",
    "-MMD -c a.c -o sub/b.o",
    "-MD -MF sub/x.d -c a.c",
    "-MD -c a.c -o sub/b.x.o",
    "-save-temps -c a.c",
    "-save-temps=obj -c a.c -o sub/b.o",
    "--coverage -c a.c",
    "-ftest-coverage -c a.c -o sub/b.o",
    "-g -gsplit-dwarf -c a.c",
    "-g -gsplit-dwarf -c a.c -o sub/b.o",
    "-ftime-trace -c a.c",
    "-O2 -fsave-optimization-record -c a.c",
    "-fstack-usage -c a.c",
    "-save-stats -c a.c",
    "-O1 -c a.c -Xclang -opt-record-file -Xclang r.yaml",
    "-c a.c -Xclang -dependency-file -Xclang x.d -Xclang -MT -Xclang a.o",
    "-c a.c -Xclang -header-include-file -Xclang h.txt -H",
    "-c a.c -fdiagnostics-format=sarif -Wno-sarif-format-unstable",
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

    monkeypatch.setattr(ending, "pass_through", run)
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
    for line in ("-S a.c", CLANG[0], "-MD -c a.c"):
        for expected in ("miss", "hit"):
            launcher.run("clang-19", *line.split())
            assert launcher.last().reason.kind == expected, line


#: A compiler that writes more than it is asked for: each name behind `+`.
SIDECC = """#!/bin/sh
for word; do case "$word" in +*) echo side > "${word#+}" ;; *.txt) in=$word ;; -o) ;; *) out=$word ;; esac; done
cat "$in" > "$out"
"""

#: A file that is written too -> whether it is called like an input or an output.
WRITTEN = {
    **dict.fromkeys(("a.log", "src/a.lst", "out/b.d", "out/b.o.dwo", "out/b.tmp"), True),
    **dict.fromkeys(("other.o", ".ninja_log", "out/c.o", "out/b.x.o", "a.x.o", "a", "out/.b.o.swp"), False),
}


@pytest.mark.parametrize(("name", "is_named"), WRITTEN.items(), ids=WRITTEN)
@pytest.mark.parametrize("was_there", [False, True])
@pytest.mark.sampled
def test_a_file_that_is_called_like_an_input_or_output_keeps_the_result_out(
    launcher: Launcher, tmp_path: Path, name: str, is_named: bool, was_there: bool
) -> None:
    tool = tmp_path / "bin" / "sidecc"
    tool.write_text(SIDECC)
    tool.chmod(0o755)
    adapter = 'match = ["sidecc"]\nflags = [\n  { names = ["-o"], takes = ["next"], is = "output" },\n]\n'
    (tmp_path / "cachec.toml").write_text(f"[adapters.sidecc]\n{adapter}")
    write("src/a.txt", "x\n")
    os.mkdir("out")
    if was_there:
        write(name, "of an older build")
    line = ("sidecc", "src/a.txt", "-o", "out/b.o", f"+{name}")
    launcher.run(*line)
    launcher.run(*line)
    # An argument that holds the path of a file counts, so what the tool changes by that name is told in any case.
    outcome = launcher.last()
    if is_named:
        assert outcome.reason.value == "bypass:undescribed-effect"
        assert f"{name} was written, which no argument names; to have it stored too, say --output" in outcome.detail
    else:
        assert outcome.hit
    write(name, "of an older build")
    if is_named:
        launcher.run(*line, options=[f"--output={name}"])
        assert launcher.last().reason.kind == "miss"
        write(name, "of an older build")
        launcher.run(*line, options=[f"--output={name}"])
        assert launcher.last().hit
        assert Path(name).read_text() == "side\n"


def test_a_described_command_may_write_beside_its_output(launcher: Launcher) -> None:
    write("a.txt", "x\n")
    options = ["--input=a.txt", "--output=b.bin"]
    for name, expected in (("b", "bypass:undescribed-effect"), ("a", "miss:new-input")):
        launcher.run("sh", "-c", f"n={name}; echo x > $n.log; cp a.txt b.bin", options=options)
        assert launcher.last().reason.value == expected
