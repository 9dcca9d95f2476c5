"""Edits that a command's result depends on, and that were not seen once: each has to miss, and its neighbour to hit.

Those of C compilers are in tests/properties.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cachec.base import fsio
from tests.launcher.conftest import Launcher, write
from tests.needs import need

CLANG = next((name for name in ("clang-19", "clang") if shutil.which(name)), "clang-19")
OPT = next((name for name in ("mlir-opt-19", "mlir-opt") if shutil.which(name)), "mlir-opt-19")
_LINE = ("fakecc", "a.txt", "-o", "a.out")


def _reason(launcher: Launcher, *line: object) -> str:
    """By the direct road where that has an answer."""
    if launcher.direct(*line) is None:
        assert launcher.run(*line).code == 0
    return launcher.last().reason.value


def test_a_compiler_that_does_not_heed_the_epoch(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As clang 14."""
    need(CLANG)
    main = f'int main(int c, char **v) {{ unsetenv("SOURCE_DATE_EPOCH"); return execv("{shutil.which(CLANG)}", v); }}'
    source = write("deaf.c", f"#include <stdlib.h>\n#include <unistd.h>\n{main}\n")
    deaf = tmp_path / "bin" / "clang"
    subprocess.run([CLANG, source, "-o", deaf], check=True)
    write("a.c", "const char *now = __TIME__;\n")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    assert _reason(launcher, deaf, "-c", "a.c", "-o", "a.o") == "bypass:volatile-input"
    assert _reason(launcher, CLANG, "-c", "a.c", "-o", "a.o").startswith("miss:")
    assert _reason(launcher, CLANG, "-c", "a.c", "-o", "a.o") == "hit"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "2")
    assert _reason(launcher, CLANG, "-c", "a.c", "-o", "a.o") != "hit"


@pytest.mark.parametrize("compiler", ["gcc", CLANG])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("const char *now = __TIME__;\n", "-Werror=date-time -c a.c -o a.o"),
        ("const char *now = __TIME__;\n", "-Wdate-time -Werror -c a.c -o a.o"),
        ("const char *now = __TIME__;\n", "-Wdate-time -c a.c -o a.o"),
        ("const char *now = __TIME__;\n", "-Wno-date-time -c a.c -o a.o"),
        ('#pragma GCC diagnostic ignored "-Wdate-time"\nconst char *now = __TIME__;\n', "-c a.c -o a.o"),
        ("int f;\n", "-c a.c -o"),
    ],
    ids=["error", "all errors", "warning", "silent by flag", "silent by pragma", "no value"],
)
def test_what_a_compiler_says_of_the_time(launcher: Launcher, compiler: str, text: str, line: str) -> None:
    need(compiler)
    write("a.c", text)
    bare = subprocess.run([compiler, *line.split()], capture_output=True, text=True, check=False)
    made = os.path.exists("a.o")
    for _ in range(2):
        Path("a.o").unlink(missing_ok=True)
        assert launcher.run(compiler, *line.split()) == (bare.returncode, bare.stdout, bare.stderr)
        assert not launcher.last().stored
        assert not launcher.last().hit
        assert (os.path.exists("a.o"), os.path.exists("-Wdate-time")) == (made, False)


def test_a_precompiled_header_holds_times(launcher: Launcher) -> None:
    """Clang refuses one where a header has another time than it had; unless it was told to leave the times out."""
    need(CLANG)
    write("x.h", "int f(void);\n")
    write("a.c", "int main(void) { return f(); }\n")
    make = (CLANG, "-x", "c-header", "x.h", "-o", "x.pch")
    for _ in range(2):
        assert _reason(launcher, *make) == "bypass:volatile-input"
    without = (*make, "-Xclang", "-fno-pch-timestamp")
    assert _reason(launcher, *without).startswith("miss:")
    os.utime("x.h", (1, 1))
    os.unlink("x.pch")
    assert _reason(launcher, *without) == "hit"
    use = (CLANG, "-include-pch", "x.pch", "-c", "a.c", "-o", "a.o")
    assert subprocess.run(use, check=False).returncode == 0


@pytest.mark.parametrize("compiler", ["gcc", CLANG])
@pytest.mark.parametrize(
    "line",
    [
        *("-E a.c -o -", "-S a.c -o -", "-S a.c -o /dev/stdout", "-c a.c -o /dev/null", "-c a.c", "-S a.c", "-M a.c"),
        *("-S -emit-llvm a.c", "-c -emit-llvm a.c", "-c -emit-llvm a.c -o -"),
    ],
)
def test_where_a_compiler_writes(launcher: Launcher, compiler: str, line: str) -> None:
    need(compiler)
    if compiler == "gcc" and "llvm" in line:
        pytest.skip("clang's flag")
    write("a.c", "int f(void) { return 1; }\n")
    subprocess.run([compiler, *line.split()], capture_output=True, check=True)
    made = {name: Path(name).read_bytes() for name in os.listdir() if name != "a.c"}
    for expected in ("miss:", "hit", "hit"):
        for name in made:
            if expected == "miss:" or "-S" in line:
                os.unlink(name)
        assert _reason(launcher, compiler, *line.split()).startswith(expected)
        assert {name: Path(name).read_bytes() for name in made} == made
    assert launcher.direct(compiler, *line.split()) is not None


@pytest.mark.parametrize("place", ["lib.mlir", "libs"])
@pytest.mark.parametrize("way", ["pipeline", "flag"])
def test_libraries_that_a_pass_reads(launcher: Launcher, place: str, way: str) -> None:
    need(OPT)
    write("a.mlir", "func.func @f() { return }\n")
    library = "lib.mlir" if place == "lib.mlir" else "libs/lib.mlir"
    passes = {
        "pipeline": f"--pass-pipeline=builtin.module(transform-preload-library{{transform-library-paths={place}}},"
        "transform-interpreter)",
        "flag": f"--transform-preload-library=transform-library-paths={place}",
    }
    line = (OPT, "a.mlir", passes[way], *([] if way == "pipeline" else ["--transform-interpreter"]), "-o", "b.mlir")
    for name, reason in (
        *(("one", "miss:new-input"), ("one", "hit"), ("two", "miss:dependency-changed"), ("one", "hit")),
    ):
        write(library, _LIBRARY.replace("NAME", name))
        assert _reason(launcher, *line) == reason
        assert name in Path("b.mlir").read_text()
        os.unlink("b.mlir")


_LIBRARY = """module attributes {transform.with_named_sequence} {
  transform.named_sequence @__transform_main(%m: !transform.any_op {transform.readonly}) {
    %0 = transform.structured.match ops{["func.func"]} in %m : (!transform.any_op) -> !transform.any_op
    transform.annotate %0 "NAME" : !transform.any_op
    transform.yield
  }
}
"""


@pytest.mark.parametrize(("flags", "is_stored"), [((), True), (("--seccomp-bpf",), False)])
def test_a_tracer_inside_of_a_run(launcher: Launcher, flags: tuple[str, ...], is_stored: bool) -> None:
    need("strace")
    write("a.txt", "x\n")
    launcher.run("strace", *flags, "-f", "-e", "trace=openat", "-o", "log", "cat", "a.txt")
    assert launcher.last().stored == is_stored, launcher.last()
    assert is_stored or "SECCOMP_RET_TRACE" in launcher.last().detail


class TestMemo:
    """What the direct road trusts, and what it watches."""

    def test_the_compilers_own_file(self, launcher: Launcher, tmp_path: Path) -> None:
        need("cc")
        for text in ("one", "two"):
            source = write("tool.c", _TOOL + f'const char *said(void) {{ return "{text}"; }}\n')
            subprocess.run(["cc", source, "-o", tmp_path / "new"], check=True)
            os.rename(tmp_path / "new", tmp_path / "bin" / "fakecc")
            write("a.txt", "x")
            assert launcher.direct(*_LINE) is None
            assert launcher.run(*_LINE).code == 0
            assert Path("a.out").read_text() == text
            assert launcher.direct(*_LINE) is not None

    def test_a_library_that_comes_first_in_the_library_path(
        self, launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        need("cc")
        for place, text in ((tmp_path / "first", "one"), (tmp_path / "second", "two")):
            place.mkdir()
            source = write("lib.c", f'const char *said(void) {{ return "{text}"; }}')
            subprocess.run(["cc", "-shared", "-fPIC", source, "-o", place / "libsaid.so"], check=True)
        source = write("tool.c", _TOOL)
        subprocess.run(["cc", source, "-o", tmp_path / "bin" / "fakecc", f"-L{tmp_path}/second", "-lsaid"], check=True)
        os.rename(tmp_path / "first" / "libsaid.so", tmp_path / "kept.so")
        monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}/first:{tmp_path}/second")
        monkeypatch.setattr(fsio, "is_settled", lambda *_: True)  # else folders that were just made are not trusted
        write("a.txt", "x")
        assert launcher.run(*_LINE).code == 0
        assert Path("a.out").read_text() == "two"
        assert launcher.direct(*_LINE) is not None
        os.rename(tmp_path / "kept.so", tmp_path / "first" / "libsaid.so")
        assert launcher.direct(*_LINE) is None
        assert launcher.run(*_LINE).code == 0
        assert Path("a.out").read_text() == "one"


#: A compiler that writes what ``said`` returns.
_TOOL = """#include <stdio.h>
const char *said(void);
int main(int c, char **v) {
  FILE *f = fopen(v[3], "w");
  fputs(said(), f);
  return fclose(f);
}
"""


@pytest.mark.parametrize("compiler", ["g++", "clang++-19"])
def test_headers_of_the_system_do_not_keep_a_result_out(tmp_path: Path, compiler: str) -> None:
    """<math.h> of glibc pastes names together of pieces that could make ``__TIME__``."""
    need(compiler)
    (tmp_path / "a.cpp").write_text("#include <math.h>\n#include <cmath>\n#include <vector>\nint x = 1;\n")
    environ = {**os.environ, "CACHEC_DIR": str(tmp_path / "store"), "CACHEC_LOG": "all"}
    told = [
        subprocess.run(
            [sys.executable, "-m", "cachec", "exec", "--", compiler, "-c", "a.cpp", "-o", "a.o"],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        for _ in range(2)
    ]
    assert "miss" in told[0]
    assert "hit" in told[1]


def test_a_program_that_another_path_did_not_lead_to(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memo of a run with another PATH holds what is in the folders of this one, too (toys, seed 6200)."""
    places = [os.path.abspath("one"), os.path.abspath("two")]
    for place in places:
        os.mkdir(place)
    before = os.environ["PATH"]

    def output(*folders: str) -> str:
        monkeypatch.setenv("PATH", os.pathsep.join([*folders, before]))
        line = [sys.executable, "-P", "-m", "cachec", "exec", "--", "/bin/sh", "-c", "sought 2>&- || echo none"]
        return subprocess.run(line, capture_output=True, text=True, check=False).stdout

    assert [output(places[0]), output(*places), output(*places)] == ["none\n"] * 3
    write("two/sought", "#!/bin/sh\necho found\n")
    os.chmod("two/sought", 0o755)
    assert output(*places) == "found\n"


@pytest.mark.parametrize(
    ("compiler", "line"),
    [
        ("gcc", "-Q --help=warnings"),
        (CLANG, "-x c-header x.h -o a.o -Xclang -fno-pch-timestamp"),
        (CLANG, "-x c-header x.h -o a.o"),
        (CLANG, "x.h -o a.o"),
        (CLANG, "-emit-ast x.c -o a.o"),
        (CLANG, "-g -frecord-command-line -c x.c -o a.o"),
    ],
)
def test_what_holds_the_flags_of_a_compiler_does_not_hold_ours(launcher: Launcher, compiler: str, line: str) -> None:
    need(compiler)
    write("x.h", "int f(void);\n")
    write("x.c", "int f(void) { return 1; }\n")
    write("a.o", "")
    bare = subprocess.run([compiler, *line.split()], capture_output=True, text=True, check=True)
    made = Path("a.o").read_bytes()
    assert launcher.run(compiler, *line.split()).stdout == bare.stdout
    assert Path("a.o").read_bytes() == made


def test_the_help_of_a_compiler_is_as_wide_as_the_terminal(launcher: Launcher) -> None:
    need("gcc")
    assert _reason(launcher, "gcc", "--help=warnings") == "bypass:volatile-input"


@pytest.mark.parametrize(
    ("header", "source", "made", "used"),
    [
        ("int f(void);", "int g(void) { return f(); }", "miss", "hit"),
        ("int f(void);", "const char *now = __TIME__;", "miss", "bypass"),
        ("#define NOW __TIME__", "const char *now = NOW;", "bypass", "bypass"),
        ("#define NOW __TIME__", "int g;", "bypass", "hit"),
        ("static const char *now = __TIME__;", "const char *g(void) { return now; }", "bypass", "hit"),  # that of then
        ("#define F(x) __##x##__", "const char *now = F(TIME);", "miss", "bypass"),
        ("#include <first.h>", "#include <second.h>", "bypass", "bypass"),
    ],
    ids=["none", "in the source", "defined", "only defined", "expanded", "pasted", "in headers of the system"],
)
def test_the_time_and_a_precompiled_header_of_gcc(
    launcher: Launcher, header: str, source: str, made: str, used: str
) -> None:
    need("gcc")
    write("x.h", f"{header}\n")
    write("a.c", f"{source}\n")
    (launcher.folder / "system").mkdir()
    write("system/first.h", "#define NOW __TIME__\n")
    write("system/second.h", "static const char *now = NOW; const char *g(void) { return now; }\n")
    flags = ("-isystem", "system", "-Winvalid-pch")
    assert _reason(launcher, "gcc", *flags, "-x", "c-header", "x.h", "-o", "x.h.gch").partition(":")[0] == made
    use = ("gcc", *flags, "-include", "x.h", "-c", "a.c", "-o", "a.o")
    assert [_reason(launcher, *use).partition(":")[0] for _ in range(3)][-1] == used
    assert _reason(launcher, *use, "-w").partition(":")[0] == "bypass"  # it reports nothing


def _printed(launcher: Launcher, *line: object) -> tuple[str, str]:
    """The reason, and what was written to standard output, by the direct road where that has an answer."""
    ran = launcher.direct(*line) or launcher.run(*line)
    assert ran.code == 0, ran.stderr
    return launcher.last().reason.value, ran.stdout.strip()


_OPENED = "import os; open('a'); s = os.stat('a'); print(s.st_nlink, s.st_uid)"


def test_a_second_name_of_an_opened_file(launcher: Launcher) -> None:
    write("a", "text\n")
    line = (sys.executable, "-c", _OPENED)
    assert _printed(launcher, *line)[1].startswith("1 ")
    assert _printed(launcher, *line)[0] == "hit"
    os.link("a", "../b")
    reason, text = _printed(launcher, *line)
    assert (reason, text[:2]) == ("miss:dependency-changed", "2 ")
    assert launcher.last().detail == "content a has a second name (a hard link)"
    os.link("a", "../c")
    assert _printed(launcher, *line)[0] == "hit"  # as stores of packages add names all the time
    only_opened = (sys.executable, "-c", "print(open('a').read())")
    _printed(launcher, *only_opened)
    os.unlink("../b")
    os.unlink("../c")
    assert _printed(launcher, *only_opened)[0] == "hit"
    assert _printed(launcher, *line)[0] == "hit"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_owner_of_an_opened_file(launcher: Launcher) -> None:
    write("a", "text\n")
    line = (sys.executable, "-c", _OPENED)
    for owner, was in ((0, "miss:new-input"), (1000, "miss:dependency-changed"), (1000, "hit"), (0, "hit")):
        os.chown("a", owner, owner)
        assert _printed(launcher, *line) == (was, f"1 {owner}")
    os.chown("a", 1001, 0)
    assert _printed(launcher, *line) == ("miss:dependency-changed", "1 1001")
    assert launcher.last().detail == "content a belongs to another user or group"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("call", ["setgid(1000)", "setuid(1000)", "setresuid(-1, 1000, -1)"])
def test_a_file_that_another_user_is_denied(launcher: Launcher, call: str) -> None:
    """Root finds what is in a folder that the command may not enter any more."""
    write("d/f", "text\n")
    os.chmod("d", 0o700)
    line = (sys.executable, "-c", f"import os; os.{call}; print(os.access('d/f', os.R_OK, effective_ids=True))")
    assert _printed(launcher, *line)[0] == "bypass:undescribed-effect"
    os.chmod("d", 0o755)
    assert _printed(launcher, *line) == ("bypass:undescribed-effect", "True")
    assert "it becomes another user" in launcher.last().detail


def test_a_program_that_stays_the_same_user(launcher: Launcher) -> None:
    line = (sys.executable, "-c", "import os; os.setuid(os.getuid()); os.setregid(-1, os.getegid()); print(1)")
    assert _printed(launcher, *line)[0].startswith("miss:")
    assert _printed(launcher, *line)[0] == "hit"
