"""Edits that a command's result depends on, and that were not seen once: each has to miss, and its neighbour to hit."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cachec.base import fsio
from cachec.base.mounts import Mounts
from cachec.launcher import adapters, memo
from cachec.launcher.command import Command, Options
from cachec.launcher.volatile import VolatileWords, pasted_word, volatile_word
from tests.launcher.conftest import Launcher, Ran, wait_for_clock, write
from tests.needs import need

CLANG = next((name for name in ("clang-19", "clang") if shutil.which(name)), "clang-19")
OPT = next((name for name in ("mlir-opt-19", "mlir-opt") if shutil.which(name)), "mlir-opt-19")
_LINE = ("fakecc", "a.txt", "-o", "a.out")


def _reason(launcher: Launcher, *line: object) -> str:
    """By the direct road where that has an answer."""
    wait_for_clock()
    if launcher.direct(*line) is None:
        ran: Ran = launcher.run(*line)
        assert ran.code == 0 or "cachec: error" in ran.stderr, ran.stderr
    return launcher.last().reason.value


class TestHeaders:
    """A folder is no header."""

    line = (CLANG, "-c", "a.c", "-o", "a.o", "-Ione", "-Itwo")

    @pytest.fixture
    def project(self, launcher: Launcher) -> Launcher:
        need(CLANG)
        write("a.c", '#include "x.h"\nint f(void) { return X; }\n')
        write("one/x.h/inner", "")
        write("two/x.h", "#define X 2\n")
        assert _reason(launcher, *self.line) == "miss:new-input"
        return launcher

    def test_a_folder_with_a_headers_name_that_becomes_the_header(self, project: Launcher) -> None:
        made = Path("a.o").read_bytes()
        shutil.rmtree("one/x.h")
        write("one/x.h", "#define X 1\n")
        assert _reason(project, *self.line) == "miss:dependency-changed"
        assert Path("a.o").read_bytes() != made

    def test_the_folder_stays_or_goes(self, project: Launcher) -> None:
        assert _reason(project, *self.line) == "hit"
        write("one/x.h/more", "")
        assert _reason(project, *self.line) == "hit"
        shutil.rmtree("one/x.h")
        assert _reason(project, *self.line) == "hit"

    def test_a_folder_that_has_include_asks_for(self, launcher: Launcher) -> None:
        need(CLANG)
        write("a.c", '#if __has_include("y.h")\nint y;\n#endif\nint f(void) { return 1; }\n')
        os.mkdir("y.h")
        assert _reason(launcher, *self.line) == "miss:new-input"
        assert _reason(launcher, *self.line) == "hit"
        os.rmdir("y.h")
        write("y.h", "")
        assert _reason(launcher, *self.line) == "miss:dependency-changed"


class TestSearchFolders:
    """Variables that list folders count, and so does what they hold."""

    def test_cpath(self, launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
        need(CLANG)
        write("a.c", "#include <x.h>\nint f(void) { return X; }\n")
        write("one/x.h", "#define X 1\n")
        write("two/x.h", "#define X 2\n")
        line = (CLANG, "-c", "a.c", "-o", "a.o")
        made = {}
        for name in ("one", "two"):
            monkeypatch.setenv("CPATH", name)
            assert _reason(launcher, *line) != "hit"
            made[name] = Path("a.o").read_bytes()
            assert _reason(launcher, *line) == "hit"
        assert made["one"] != made["two"]

    def test_a_header_that_comes_first_in_cpath(self, launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
        need(CLANG)
        write("a.c", "#include <x.h>\nint f(void) { return X; }\n")
        write("two/x.h", "#define X 2\n")
        write("one/y.h", "")
        monkeypatch.setenv("CPATH", "one:two")
        line = (CLANG, "-c", "a.c", "-o", "a.o")
        assert _reason(launcher, *line) == "miss:new-input"
        write("one/z.h", "")
        assert _reason(launcher, *line) == "hit"
        write("one/x.h", "#define X 1\n")
        assert _reason(launcher, *line) == "miss:dependency-changed"


class TestEpoch:
    """SOURCE_DATE_EPOCH is believed of a compiler that heeds it."""

    @pytest.fixture
    def deaf(self, launcher: Launcher, tmp_path: Path) -> Path:
        """A clang that does not, as clang 14: an ELF executable of the name."""
        need(CLANG)
        main = (
            f'int main(int c, char **v) {{ unsetenv("SOURCE_DATE_EPOCH"); return execv("{shutil.which(CLANG)}", v); }}'
        )
        source = write("deaf.c", f"#include <stdlib.h>\n#include <unistd.h>\n{main}\n")
        subprocess.run([CLANG, source, "-o", tmp_path / "bin" / "clang"], check=True)
        os.unlink(source)
        return tmp_path / "bin" / "clang"

    @pytest.mark.parametrize("word", ["__DATE__", "__TIME__", "__TIMESTAMP__"])
    @pytest.mark.sampled
    def test_only_a_compiler_that_heeds_it(
        self, launcher: Launcher, deaf: Path, monkeypatch: pytest.MonkeyPatch, word: str
    ) -> None:
        write("a.c", f"const char *now = {word};\n")
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
        assert _reason(launcher, deaf, "-c", "a.c", "-o", "a.o") == "bypass:volatile-input"
        assert _reason(launcher, CLANG, "-c", "a.c", "-o", "a.o") == "miss:new-input"
        assert _reason(launcher, CLANG, "-c", "a.c", "-o", "a.o") == "hit"
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "2")
        assert _reason(launcher, CLANG, "-c", "a.c", "-o", "a.o") != "hit"

    def test_in_a_header_that_a_flag_names(self, launcher: Launcher) -> None:
        need(CLANG)
        write("a.c", "const char *now = NOW;\n")
        write("now.h", "#define NOW __TIME__\n")
        assert _reason(launcher, CLANG, "-c", "a.c", "-o", "a.o", "-include", "now.h") == "bypass:volatile-input"
        write("now.h", '#define NOW "noon"\n')
        assert _reason(launcher, CLANG, "-c", "a.c", "-o", "a.o", "-include", "now.h") == "miss:new-input"


class TestSpelling:
    """Words that are not written as they are read."""

    c = {"__TIME__": "time", "__DATE__": "date", ".incbin": "file", ".include": "file", "#embed": "file"}  # noqa: RUF012

    @pytest.mark.parametrize(
        "text",
        [
            b"char *a = __TI\\\nME__;",
            b"char *a = __TI\\\r\nME__;",
            b"char *a = __TI\\ \nME__;",
            b"char *a = __TI??/\nME__;",
            b'asm(".inc" "bin \\"x\\"");',
            b'asm("\\x2eincbin \\"x\\"");',
            b'asm("\\56\\151ncbin \\"x\\"");',
            b'asm(".in\\\ncbin \\"x\\"");',
            b'#define B "bin \\"x\\""\nasm(".inc" B);',
            b'#define A ".inc"\n__asm__ volatile (A "bin \\"x\\"");',
            b"#define S(x) #x\n#define T(x) S(x)\nasm(T(.inc)T(bin));",
            b'asm(".macro m a b\\n.\\\\a\\\\b \\"x\\"\\n.endm\\nm inc bin");',
            b'asm(".IncBin \\"x\\"");',
            b'asm(".INCBIN" " \\"x\\"");',
            b'asm(".macro m a b\\n\\\\a\\\\b \\"x\\"\\n.endm\\nm .in cbin");',
            b'asm(".irpc c, x\\n.\\\\c\\n.endr");',
            b"#  embed <x>",
            b"%:embed <x>",
            b"??=embed <x>",
        ],
    )
    def test_c(self, tmp_path: Path, text: bytes) -> None:
        path = write(str(tmp_path / "a.c"), text)
        assert volatile_word(str(path), self.c, "c") is not None
        assert volatile_word(str(path), {"__COUNTER__": ""}, "c") is None

    @pytest.mark.parametrize(
        "text",
        [
            b"char *a = __TI\nME__; /* ??/ \\ */",
            b'asm("mov $1, %0" : "=r"(x));',
            b'int f(void) __asm__ (NAME "x");',
            b'#include "x.inc"\nasm("nop; include" "d");',
            b'char *a = "done."; asm("nop");',
            b'asm(".macro m a\\n.L\\\\a: nop\\n.endm");',
            b"int incbin, include, embed;",
            b"int f(void) { return x.Include(y) + x.INCLUDE; }",
            b'asm(".macro m a b\\n\\\\a\\\\b %eax\\n.endm\\nm mo v");',
        ],
    )
    def test_c_that_says_nothing_of_the_kind(self, tmp_path: Path, text: bytes) -> None:
        assert volatile_word(str(write(str(tmp_path / "a.c"), text)), self.c, "c") is None

    def test_llvm(self, tmp_path: Path) -> None:
        path = str(write(str(tmp_path / "a.ll"), b'module asm "\\2Eincbin \\22x\\22"'))
        assert volatile_word(path, self.c, "llvm") is not None
        write(path, b'module asm "\\2EINCBIN \\22x\\22"')
        assert volatile_word(path, self.c, "llvm") is not None
        write(path, b'module asm "\\2Eglobl x"')
        assert volatile_word(path, self.c, "llvm") is None

    @pytest.mark.parametrize(
        "text", ['.macro m a\n\\a "x"\n.endm\nm .INCBIN\n', '.INCLUDE "x"\n', ".irpc a, b\n.endr\n"]
    )
    def test_assembly(self, tmp_path: Path, text: str) -> None:
        path = str(write(str(tmp_path / "a.s"), text))
        assert volatile_word(path, self.c, "assembly") is not None
        write(path, ".macro m a\nmov \\a, %eax\n.endm\nm $1\n.globl included\n")
        assert volatile_word(path, self.c, "assembly") is None

    @pytest.mark.parametrize("before", range(5))
    @pytest.mark.sampled
    def test_bitcode(self, tmp_path: Path, before: int) -> None:
        need(CLANG)
        path = str(tmp_path / "a.bc")
        for text, is_said in ((".incbin", True), (".INCLUDE", True), (".macro m", True), (".globl", False)):
            source = write(str(tmp_path / "a.c"), f'void f(void) {{ asm("{" " * before}{text} \\"x\\""); }}\n')
            subprocess.run([CLANG, "-c", "-emit-llvm", source, "-o", path], check=True)
            assert (volatile_word(path, self.c, "llvm") is not None) == is_said

    @pytest.mark.parametrize("tool", ["llc-19", CLANG])
    @pytest.mark.sampled
    def test_standard_input(self, launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
        need(tool)
        flags = ("-filetype=obj",) if tool == "llc-19" else ("-c", "-x", "ir", "-")
        source = write("a.ll", 'module asm ".incbin \\22data\\22"\n')
        with source.open() as file:
            monkeypatch.setattr(os, "read", lambda fd, size, read=os.read: read(file.fileno() if fd == 0 else fd, size))
            assert _reason(launcher, tool, *flags, "-o", "a.o") == "bypass:volatile-input"

    @pytest.mark.parametrize(
        ("texts", "is_made"),
        [
            ([b"#define C(a, b) a ## b\nchar *a = C(__TI, ME__);"], True),
            ([b"#define C(a, b) a %:%: b\nchar *a = C(__TI, ME__);"], True),
            ([b"#define C(a, b) a ## b\n", b"char *a = C(__, TIME_) C(_, x);"], True),
            ([b"#define C(a, b) a##b\nchar *a = C(__TI,\\\nME__);"], True),
            ([b"char *a = x(__TI, ME__);"], False),
            ([b"#define C(a, b) a ## b\nchar *a = C(__TI, X);"], False),
            ([b'#define C(a, b) a ## b\nchar *a = "__TI"; /* ME__ */'], False),
        ],
    )
    def test_pasted(self, texts: list[bytes], is_made: bool) -> None:
        assert (pasted_word(texts, {"__TIME__": "time"}) is not None) == is_made

    @pytest.mark.parametrize(("tool", "pastes"), [("clang", True), ("opt", False), ("nobody", False)])
    def test_only_a_preprocessor_pastes(self, tool: str, pastes: bool) -> None:
        adapter = adapters.find(f"/nowhere/{tool}", tool)
        command = Command((tool,), f"/nowhere/{tool}", "/", adapter, Options())
        said = VolatileWords(command, {}).pasted([b"#define C(a, b) a ## b\nchar *a = C(__TI, ME__);"], [])
        assert ("__TIME__" in said) == bool(said) == pastes

    @pytest.mark.parametrize(
        "text",
        [
            "#define C(a, b) a ## b\nconst char *now = C(__TI, ME__);\n",
            "const char *now = __TI\\\nME__;\n",
            'asm(".inc" "bin \\"data\\"");\n',
        ],
    )
    @pytest.mark.sampled
    def test_with_the_real_compiler(self, launcher: Launcher, text: str) -> None:
        need(CLANG)
        write("a.c", text)
        write("data", "x")
        assert _reason(launcher, CLANG, "-c", "a.c", "-o", "a.o") == "bypass:volatile-input"
        assert _reason(launcher, CLANG, "-c", "a.c", "-o", "a.o") == "bypass:volatile-input"

    def test_what_the_system_has_is_no_hindrance(self, launcher: Launcher) -> None:
        need(CLANG)
        write("a.c", "#include <stdio.h>\n#include <math.h>\n#include <stdlib.h>\nint f(void) { return 1; }\n")
        assert _reason(launcher, CLANG, "-c", "a.c", "-o", "a.o") == "miss:new-input"
        assert _reason(launcher, CLANG, "-c", "a.c", "-o", "a.o") == "hit"


class TestWrappers:
    """A script that is called like a compiler."""

    @pytest.fixture
    def project(self, launcher: Launcher) -> Launcher:
        need(CLANG)
        write("a.c", "int f(void) { return 1; }\n")
        return launcher

    line = ("clang", "-c", "a.c", "-o", "a.o")

    def _script(self, launcher: Launcher, name: str, text: str) -> Path:
        path = launcher.store.parent / "bin" / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def test_what_it_runs_counts(self, project: Launcher) -> None:
        inner = self._script(project, "inner", f'#!/bin/sh\n# the real one\nexec {shutil.which(CLANG)} "$@"\n')
        self._script(project, "clang", f'#!/bin/sh\nexec {inner} "$@"\n')
        assert _reason(project, *self.line) == "miss:new-input"
        assert _reason(project, *self.line) == "hit"
        self._script(project, "inner", f'#!/bin/sh\n# a later one\nexec {shutil.which(CLANG)} "$@"\n')
        assert _reason(project, *self.line) == "miss:tool-changed"
        assert _reason(project, *self.line) == "hit"

    @pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
    def test_the_shells_that_are_read(self, project: Launcher, shell: str) -> None:
        if shutil.which(shell) is None:
            pytest.skip(f"{shell} is not installed")
        self._script(project, "clang", f'#!/usr/bin/env {shell}\nexec {shutil.which(CLANG)} "$@"\n')
        assert _reason(project, *self.line) == "miss:new-input"

    def test_a_name_is_looked_up_in_path(self, project: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
        self._script(project, "clang", f'#!/bin/sh\nexec {CLANG} "$@"\n')
        first = project.store.parent / "first"
        first.mkdir()
        monkeypatch.setenv("PATH", f"{first}:{os.environ['PATH']}")
        assert _reason(project, *self.line) == "miss:new-input"
        assert _reason(project, *self.line) == "hit"
        (first / CLANG).write_text(f'#!/bin/sh\nexec {shutil.which(CLANG)} "$@"\n')
        (first / CLANG).chmod(0o755)
        assert _reason(project, *self.line) == "miss:tool-changed"

    @pytest.mark.parametrize(
        "script",
        [
            '#!/bin/sh\n. ./settings\nexec CLANG "$@"\n',
            '#!/bin/sh\nexec CLANG $(cat flags) "$@"\n',
            '#!/bin/sh\nexec CLANG -Iinclude "$@"\n',
            '#!/bin/sh\nCLANG "$@"\n',
            '#!/bin/sh\nexec "$REAL" "$@"\n',
            '#!/bin/sh\nexec ../clang "$@"\n',
            '#!/bin/sh\nexec nowhere "$@"\n',
            "#!/usr/bin/env python3\nimport os, sys\nos.execv('CLANG', sys.argv)\n",
        ],
    )
    def test_one_that_does_more_passes_through_and_says_what_to_do(self, project: Launcher, script: str) -> None:
        self._script(project, "clang", script.replace("CLANG", str(shutil.which(CLANG))))
        assert _reason(project, *self.line) == "bypass:not-understood"
        assert "--tool" in project.last().detail

    def test_one_that_runs_itself(self, project: Launcher) -> None:
        path = self._script(project, "clang", "")
        self._script(project, "clang", f'#!/bin/sh\nexec {path} "$@"\n')
        assert _reason(project, *self.line) == "bypass:not-understood"

    def test_one_that_is_described_is_keyed_with_that(self, project: Launcher) -> None:
        self._script(project, "clang", f'#!/bin/sh\n. ./settings\nexec {shutil.which(CLANG)} $FLAGS "$@"\n')
        write("settings", "FLAGS=-O0\n")
        options = [f"--tool={shutil.which(CLANG)}", "--input=settings"]
        for text, reason in (("-O0", "miss:new-input"), ("-O0", "hit"), ("-O2", "miss:file-changed")):
            write("settings", f"FLAGS={text}\n")
            assert project.run(*self.line, options=options).code == 0
            assert project.last().reason.value == reason

    def test_a_link_to_another_program(self, project: Launcher, tmp_path: Path) -> None:
        os.symlink(shutil.which("true") or "/bin/true", tmp_path / "bin" / "clang")
        assert _reason(project, *self.line) == "bypass:not-understood"
        assert "another program" in project.last().detail
        os.unlink(tmp_path / "bin" / "clang")
        os.symlink(str(shutil.which(CLANG)), tmp_path / "bin" / "clang")
        assert _reason(project, *self.line) == "miss:new-input"


class TestPipelines:
    """Files that options inside a pipeline name."""

    def test_a_library_inside_a_pipeline(self, launcher: Launcher) -> None:
        need(OPT)
        write("a.mlir", "func.func @f() { return }\n")
        write("lib.mlir", _LIBRARY.replace("NAME", "one"))
        pipeline = "builtin.module(transform-preload-library{transform-library-paths=lib.mlir},transform-interpreter)"
        line = (OPT, "a.mlir", f"--pass-pipeline={pipeline}", "-o", "b.mlir")
        os.mkdir("cse")
        assert _reason(launcher, *line) == "miss:new-input"
        assert _reason(launcher, *line) == "hit"
        write("lib.mlir", _LIBRARY.replace("NAME", "two"))
        assert _reason(launcher, *line) == "miss:file-changed"
        write("lib.mlir", _LIBRARY.replace("NAME", "one"))
        assert _reason(launcher, *line) == "hit"

    def test_libraries_in_an_option(self, launcher: Launcher) -> None:
        need(OPT)
        write("a.mlir", "func.func @f() { return }\n")
        for name in ("one", "two"):
            write(f"{name}.mlir", _LIBRARY.replace("NAME", name).replace("__transform_main", f"main_{name}"))
        line = (
            OPT,
            "a.mlir",
            "--transform-preload-library=transform-library-paths=one.mlir,two.mlir",
            "--transform-interpreter=entry-point=main_one",
            "-o",
            "b.mlir",
        )
        assert _reason(launcher, *line) == "miss:new-input"
        assert _reason(launcher, *line) == "hit"
        write("two.mlir", "module attributes {transform.with_named_sequence} {}\n")
        assert _reason(launcher, *line) == "miss:file-changed"

    def test_a_folder_of_libraries_is_left_to_the_compiler(self, launcher: Launcher) -> None:
        need(OPT)
        write("a.mlir", "func.func @f() { return }\n")
        write("libs/lib.mlir", _LIBRARY)
        pipeline = "builtin.module(transform-preload-library{transform-library-paths=libs},transform-interpreter)"
        assert (
            _reason(launcher, OPT, "a.mlir", f"--pass-pipeline={pipeline}", "-o", "b.mlir") == "bypass:not-understood"
        )


_LIBRARY = """module attributes {transform.with_named_sequence} {
  transform.named_sequence @__transform_main(%m: !transform.any_op {transform.readonly}) {
    %0 = transform.structured.match ops{["func.func"]} in %m : (!transform.any_op) -> !transform.any_op
    transform.annotate %0 "NAME" : !transform.any_op
    transform.yield
  }
}
"""


class TestCommandLine:
    """Flags that put the command line into the result."""

    @pytest.mark.parametrize("flags", [["-frecord-command-line"], ["-g", "-grecord-command-line"]])
    @pytest.mark.sampled
    def test_another_output_name(self, launcher: Launcher, flags: list[str]) -> None:
        need(CLANG)
        write("a.c", "int f(void) { return 1; }\n")
        line = (CLANG, *flags, "-c", "a.c", "-o")
        assert _reason(launcher, *line, "a.o") == "miss:new-input"
        assert _reason(launcher, *line, "a.o") == "hit"
        assert _reason(launcher, *line, "other.o") == "miss:option-changed"
        subprocess.run([*line, "plain.o"], check=True)
        assert b"other.o" in Path("other.o").read_bytes()

    def test_its_neighbours(self, launcher: Launcher) -> None:
        need(CLANG)
        write("a.c", "int f(void) { return 1; }\n")
        assert _reason(launcher, CLANG, "-fno-record-command-line", "-c", "a.c", "-o", "a.o") == "miss:new-input"
        assert _reason(launcher, CLANG, "-fno-record-command-line", "-c", "a.c", "-o", "b.o") == "hit"


class TestMemo:
    """What the direct road trusts, and what it watches."""

    def test_a_foreign_file_is_trusted_as_part_of_a_tool_only(
        self, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An input of another user may be mapped for writing, which no time stamp shows at once."""
        trusted: dict[str, bool] = {}
        is_certain = memo.Draft._is_certain

        def spy(self: memo.Draft, path: str, found: bytes, digest: str) -> bool:
            trusted[os.path.basename(path)] = is_certain(self, path, found, digest)
            return trusted[os.path.basename(path)]

        monkeypatch.setattr(memo.Draft, "_is_certain", spy)
        monkeypatch.setattr(fsio, "no_writer", lambda _: False)  # a plain user gets no lease on others' files
        monkeypatch.setattr(fsio, "settled", lambda *_: True)
        monkeypatch.setattr(Mounts, "kind", lambda *_: "ext4")
        monkeypatch.setattr(Mounts, "kind_of_device", lambda *_: "ext4")
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
        real = os.access
        monkeypatch.setattr(os, "access", lambda path, mode, **_: mode != os.W_OK and real(path, mode))
        write("a.txt", "one\n")
        assert launcher.run(*_LINE).code == 0
        assert trusted["a.txt"] is False
        assert trusted["fakecc"] is True

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
        monkeypatch.setattr(fsio, "settled", lambda *_: True)  # else folders that were just made are not trusted
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
