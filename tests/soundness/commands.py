"""Command lines under ``cachec exec`` against the bare compiler, after edits of whatever they may look at.

A command is a line of the table. In its words, files and variables ``$S`` is a number that decides what comes out, and
a file whose name ends in ``?`` is there where that number is odd; what comes out is all that the command writes, on its
streams too, and its exit status. Each edit is looked at twice, so that the second look may hit.

Between them come generated C projects (``folders``), in folder after folder of one store.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cachec.events import read_log
from cachec.launcher.adapters import SHIPPED
from cachec.model import Outcome
from tests.soundness.folders import LINK, edited, layout
from tests.soundness.runner import Report, judge

# Lines are easier to read as they are.
# ruff: noqa: E501


class Command(NamedTuple):
    """options: of ``cachec exec``. cwd: the folder in which it is run. may_pass: whether it may not be cached at all."""

    name: str
    line: str
    files: dict[str, str]
    env: dict[str, str] = {}  # noqa: RUF012 - never changed
    options: str = ""
    cwd: str = "."
    may_pass: bool = False


_C = "clang-19 -c a.c -o a.o"
_F = "int f(void) { return X; }\n"
_MLIR = (
    "func.func @f() -> i32 {\n  %c = arith.constant $S : i32\n  %d = arith.addi %c, %c : i32\n  return %d : i32\n}\n"
)
_LIBRARY = 'module attributes {transform.with_named_sequence} {\n  transform.named_sequence @__transform_main(%m: !transform.any_op {transform.readonly}) {\n    %0 = transform.structured.match ops{["func.func"]} in %m : (!transform.any_op) -> !transform.any_op\n    transform.annotate %0 "n$S" : !transform.any_op\n    transform.yield\n  }\n}\n'
_EXECUTABLE = '#t = #hal.executable.target<"llvm-cpu", "embedded-elf-x86_64", {cpu = "generic", data_layout = "e-m:e-i64:64-i128:128-n8:16:32:64-S128", native_vector_size = 16 : i64, target_triple = "x86_64-unknown-unknown-eabi-elf"}>\nhal.executable @e {\n  hal.executable.variant @v target(#t) {\n    hal.executable.export @d ordinal(0) layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer>]>)\n    builtin.module {\n      llvm.func @d(%a: !llvm.ptr, %b: !llvm.ptr, %c: !llvm.ptr) -> i32 {\n        %0 = llvm.mlir.constant(0 : i32) : i32\n        llvm.inline_asm has_side_effects ".incbin \\22data\\22", "" : () -> ()\n        llvm.return %0 : i32\n      }\n    }\n  }\n}\n'

COMMANDS = [
    Command("source", _C, {"a.c": "int f(void) { return $S; }\n"}),
    Command("macro", f"{_C} -DX=$S", {"a.c": _F}),
    Command("header", _C, {"a.c": '#include "x.h"\n' + _F, "x.h": "#define X $S\n"}),
    Command("header of a header", f"{_C} -Iinc", {"a.c": "#include <x.h>\n" + _F, "inc/x.h": '#include "deep/y.h"\n', "inc/deep/y.h": "#define X $S\n"}),
    Command("header that comes first", f"{_C} -Ione -Itwo", {"a.c": "#include <x.h>\n" + _F, "one/y.h": "", "one/x.h?": "#define X $S\n", "two/x.h": "#define X 0\n"}),
    Command("header that is looked for", _C, {"a.c": '#if __has_include("x.h")\n#include "x.h"\n#else\n#define X 0\n#endif\n' + _F, "x.h?": "#define X $S\n"}),
    Command("header beside the source", "clang-19 -c src/a.c -o a.o -Iinc", {"src/a.c": '#include "x.h"\n' + _F, "inc/x.h": "#define X 0\n", "src/x.h?": "#define X $S\n"}),
    Command("header by a macro", f"{_C} -DH=\"x$S.h\"", {"a.c": "#define T(x) #x\n#define Q(x) T(x)\n#include Q(H)\n" + _F, "x$S.h": "#define X $S\n"}),
    Command("header by include_next", f"{_C} -Ione -Itwo", {"a.c": "#include <x.h>\n" + _F, "one/x.h": "#include_next <x.h>\n", "two/x.h": "#define X $S\n"}),
    Command("system header", f"{_C} -isystem sys", {"a.c": "#include <x.h>\n" + _F, "sys/x.h": "#define X $S\n"}),
    Command("forced header", f"{_C} -include x.h", {"a.c": _F, "x.h": "#define X $S\n"}),
    Command("forced macros", f"{_C} -imacros x.h", {"a.c": _F, "x.h": "#define X $S\n"}),
    Command("header by CPATH", _C, {"a.c": "#include <x.h>\n" + _F, "one/x.h?": "#define X $S\n", "two/x.h": "#define X 0\n"}, {"CPATH": "one:two"}),
    Command("header that comes first, by folders with dots", f"{_C} -I./one -I./two", {"a.c": "#include <x.h>\n" + _F, "one/y.h": "", "one/x.h?": "#define X $S\n", "two/x.h": "#define X 0\n"}),
    Command("header behind the system's", f"{_C} -idirafter one -isystem two", {"a.c": "#include <x.h>\n" + _F, "two/y.h": "", "two/x.h?": "#define X $S\n", "one/x.h": "#define X 0\n"}),
    Command("header beside one in a folder called include", f"{_C} -Iinc", {"a.c": '#include "include/h.h"\n' + _F, "include/h.h": '#include "x.h"\n', "include/x.h?": "#define X $S\n", "inc/x.h": "#define X 0\n"}),
    Command("header that two ask for", f"{_C} -Iinc", {"a.c": '#if __has_include("x.h")\n#include "x.h"\n#endif\n#include <y.h>\n' + _F, "inc/y.h": '#if __has_include("x.h")\n#include "x.h"\n#else\n#define X 0\n#endif\n', "inc/x.h?": "#define X $S\n"}),
    Command("header that a macro asks for", _C, {"a.c": '#define HAS(x) __has_include(x)\n#if HAS("x.h")\n#include "x.h"\n#else\n#define X 0\n#endif\n' + _F, "x.h?": "#define X $S\n"}),
    Command("header that a definition asks for", f"{_C} -DHAS=__has_include", {"a.c": '#if HAS("x.h")\n#include "x.h"\n#else\n#define X 0\n#endif\n' + _F, "x.h?": "#define X $S\n"}, may_pass=True),
    Command("header that pieces ask for", _C, {"a.c": '#define P(a, b) a##b\n#if P(__has_, include)("x.h")\n#include "x.h"\n#else\n#define X 0\n#endif\n' + _F, "x.h?": "#define X $S\n"}, may_pass=True),
    Command("header of a framework", f"{_C} -Ione -Ftwo", {"a.c": "#include <Foo/x.h>\n" + _F, "two/Foo.framework/Headers/x.h": "#define X 0\n", "one/y.h": "", "one/Foo/x.h?": "#define X $S\n"}, may_pass=True),
    Command("forced header, compiled", f"{_C} -includex.h", {"a.c": _F, "x.h": "#define X $S\n", "x.h.pch?": "$S"}, may_pass=True),
    Command("forced header by the long name", f"{_C} --include=x.h", {"a.c": _F, "x.h": "#define X $S\n", "x.h.pch?": "$S"}, may_pass=True),
    Command("dependencies by the preprocessor", f"{_C} -Wp,-MD,a.d", {"a.c": '#include "x$S.h"\nint f(void) { return 1; }\n', "x$S.h": ""}, may_pass=True),
    Command("use of the stack", f"{_C} -fstack-usage", {"a.c": "int f(void) { return $S; }\n"}, may_pass=True),
    Command("interface", f"{_C} -emit-interface-stubs", {"a.c": "int f(void) { return $S; }\n"}, may_pass=True),
    Command("age of a file", _C, {"a.c": '#pragma GCC dependency "x.h"\nint f(void) { return $S; }\n', "x.h": ""}, may_pass=True),
    Command("another CPATH", _C, {"a.c": "#include <x.h>\n" + _F, "p$S/x.h": "#define X $S\n"}, {"CPATH": "p$S"}),
    Command("header by C_INCLUDE_PATH", _C, {"a.c": "#include <x.h>\n" + _F, "inc/x.h": "#define X $S\n"}, {"C_INCLUDE_PATH": "inc"}),
    Command("response file", "clang-19 @flags", {"a.c": _F, "flags": "-c a.c -o a.o -DX=$S"}),
    Command("response file in a response file", "clang-19 @flags", {"a.c": _F, "flags": "-c a.c @more -o a.o", "more": "-DX=$S"}),
    Command("folder of headers in a response file", f"{_C} @flags", {"a.c": "#include <x.h>\n" + _F, "flags": "-Iinc", "inc/x.h": "#define X $S\n"}),
    Command("dependencies", f"{_C} -MD -MF a.d", {"a.c": '#include "x$S.h"\nint f(void) { return 1; }\n', "x$S.h": ""}),
    Command("debug information", f"{_C} -g", {"a.c": "int f(void) { return $S; }\n"}),
    Command("place of a line", f"{_C} -g", {"a.c": "// $S\n" + "\n" * 2 + "int f(void) { return __LINE__; }\n"}),
    Command("assembly", "clang-19 -S a.c -o a.s", {"a.c": "int f(void) { return $S; }\n"}),
    Command("LLVM's IR", "clang-19 -S -emit-llvm a.c -o a.ll", {"a.c": "int f(void) { return $S; }\n"}),
    Command("optimisation", f"{_C} -O$S", {"a.c": "int f(int n) { int s = 0; for (int i = 0; i < n; i++) s += i; return s; }\n"}),
    Command("another standard", "clang-19 -c a.c -o a.o -DX=$S -std=c17", {"a.c": "long f(void) { return __STDC_VERSION__ + X; }\n"}),
    Command("warning", f"{_C} -Wall", {"a.c": "int f(void) { int unused$S; return 1; }\n"}),
    Command("warning of a header", _C, {"a.c": '#include "x.h"\nint f(void) { return 1; }\n', "x.h": "#warning said $S\n"}),
    Command("error", _C, {"a.c": '#include "x.h"\nint f(void) { return 1; }\n', "x.h": "#if $S % 2\n#error said $S\n#endif\n"}, may_pass=True),
    Command("name of the file", _C, {"a.c": 'const char *f(void) { return __FILE__ "$S"; }\n'}),
    Command("time", _C, {"a.c": "const char *f = __DATE__ __TIME__;\n"}, {"SOURCE_DATE_EPOCH": "$S00000"}),
    Command("file by the assembler", _C, {"a.c": 'asm(".incbin \\"data\\"");\n', "data": "$S"}, may_pass=True),
    Command("file by the assembler, in pieces", _C, {"a.c": '#define B "bin"\nasm(".inc" B " \\"data\\"");\n', "data": "$S"}, may_pass=True),
    Command("file by the assembler, in capitals", _C, {"a.c": 'asm(".IncBin \\"data\\"");\n', "data": "$S"}, may_pass=True),
    Command("file by the assembler, of macros", "clang-19 -c a.s -o a.o", {"a.s": '.macro m a, b\n\\a\\b "data"\n.endm\nm .inc, bin\n', "data": "$S"}, may_pass=True),
    Command("file by the assembler, one by one", "clang-19 -c a.s -o a.o", {"a.s": '.irp a, .incb\n\\a\\()in "data"\n.endr\n', "data": "$S"}, may_pass=True),
    Command("file by the assembler, pasted", "clang-19 -c a.S -o a.o", {"a.S": '#define I(a, b) .a##b "data"\nI(inc, bin)\n', "data": "$S"}, may_pass=True),
    Command("file by the assembler, in IR", "llc-19 -filetype=obj a.ll -o a.o", {"a.ll": 'module asm ".INCBIN \\22data\\22"\n', "data": "$S"}, may_pass=True),
    Command("embedded file", f"{_C} -Wno-c23-extensions", {"a.c": "char f[] = {\n#embed \"data\"\n};\n", "data": "$S"}, may_pass=True),
    Command("assembler with headers", "clang-19 -c a.S -o a.o", {"a.S": '#include "x.h"\n.long X\n', "x.h": "#define X $S\n"}),
    Command("assembler's own include", "clang-19 -c a.s -o a.o", {"a.s": '.include "x.s"\n', "x.s": ".long $S\n"}, may_pass=True),
    Command("command line in the object", f"{_C} -frecord-command-line -DX=$S", {"a.c": "int f(void) { return 1; }\n"}),
    Command("language by a flag", "clang-19 -x c -c a.txt -o a.o", {"a.txt": "int f(void) { return $S; }\n"}),
    Command("C++", "clang-19 -c a.cc -o a.o -Iinc", {"a.cc": "#include <x.hh>\nauto f() { return t<int>(); }\n", "inc/x.hh": "template <class T> T t() { return $S; }\n"}),
    Command("two sources", "clang-19 -c a.c b.c", {"a.c": "int f(void) { return 1; }\n", "b.c": "int g(void) { return $S; }\n"}, may_pass=True),
    Command("preprocessed only", "clang-19 -E a.c", {"a.c": '#include "x.h"\nX\n', "x.h": "#define X $S\n"}, may_pass=True),
    Command("folder as a header's name", f"{_C} -Ione -Itwo", {"a.c": "#include <x.h>\n" + _F, "one/x.h/y": "", "two/x.h": "#define X $S\n"}),
    Command("from another folder", "clang-19 -c ../a.c -o ../a.o -I..", {"a.c": "#include <x.h>\n" + _F, "x.h": "#define X $S\n", "build/here": ""}, cwd="build"),
    Command("profile", f"{_C} -fprofile-use=a.profdata", {"a.c": "int f(void) { return $S; }\n", "a.profdata": ""}, may_pass=True),
    Command("configuration file", f"{_C} --config=./own.cfg", {"a.c": _F, "own.cfg": "-DX=$S"}, may_pass=True),
    Command("map of prefixes", f"{_C} -g -ffile-prefix-map=src=p$S", {"a.c": "const char *f = __FILE__;\n"}),
    Command("cc with declared inputs", "cc -c a.c -o a.o -Iinc", {"a.c": "#include <x.h>\n" + _F, "inc/x.h": "#define X $S\n"}, options="--input a.c --input inc --output a.o --tool as"),
    Command("cc that preprocesses", "cc -E -P a.c -o a.i", {"a.c": '#include "x.h"\nX\n', "x.h": "#define X $S\n"}, options="--input a.c --input x.h --output a.i"),
    Command("cc with a declared variable", "cc -E -P a.c -o a.i", {"a.c": "#include <x.h>\nX\n", "i$S/x.h": "#define X $S\n"}, {"CPATH": "i$S"}, "--input a.c --input i$S --output a.i --env CPATH"),
    Command("cc as it is", "cc -E -P a.c -o a.i", {"a.c": '#include "x.h"\nX\n', "x.h": "#define X $S\n"}, may_pass=True),
    Command("module", "mlir-opt-19 a.mlir -o b.mlir", {"a.mlir": _MLIR}),
    Command("passes", "mlir-opt-19 a.mlir -o b.mlir --canonicalize --pass-pipeline=builtin.module(cse)", {"a.mlir": _MLIR}, may_pass=True),
    Command("module in generic notation", "mlir-opt-19 --mlir-print-op-generic a.mlir", {"a.mlir": _MLIR}),
    Command("another pass", "mlir-opt-19 a.mlir --inline=max-iterations=$S -o b.mlir", {"a.mlir": _MLIR}),
    Command("library in a pipeline", "mlir-opt-19 a.mlir --pass-pipeline=builtin.module(transform-preload-library{transform-library-paths=lib.mlir},transform-interpreter) -o b.mlir", {"a.mlir": "func.func @f() { return }\n", "lib.mlir": _LIBRARY}),
    Command("invalid module", "mlir-opt-19 a.mlir -o b.mlir", {"a.mlir": "func.func @f() -> i$S { return }\n"}, may_pass=True),
    Command("split module", "mlir-opt-19 --split-input-file a.mlir -o b.mlir", {"a.mlir": _MLIR + "// -----\n" + _MLIR}),
    Command("translation", "mlir-translate-19 --mlir-to-llvmir a.mlir -o a.ll", {"a.mlir": "llvm.func @f() -> i32 {\n  %c = llvm.mlir.constant($S : i32) : i32\n  llvm.return %c : i32\n}\n"}),
    Command("code of IR", "llc-19 a.ll -o a.s", {"a.ll": "define i32 @f() {\n  ret i32 $S\n}\n"}),
    Command("IR", "opt-19 -S a.ll -o b.ll -passes=instcombine", {"a.ll": "define i32 @f(i32 %x) {\n  %y = add i32 %x, $S\n  %z = add i32 %y, $S\n  ret i32 %z\n}\n"}),
    Command("file by IREE's assembler", "iree-compile a.mlir --compile-mode=hal-executable --iree-hal-target-device=local --iree-hal-local-target-device-backends=llvm-cpu -o a.vmfb", {"a.mlir": _EXECUTABLE, "data": "$S"}, may_pass=True),
    Command("file in a list", "sh run x:data", {"run": 'cp "${1#*:}" out\n', "a": "", "data": "$S"}, options="--input a --output out --tool cp"),
    Command("iree-compile", "iree-compile a.mlir --compile-to=input -o b.mlir", {"a.mlir": _MLIR}),
]  # fmt: skip


class Shown(NamedTuple):
    """What comes of a command: exit status, streams, and the files that it leaves, by name."""

    status: int
    stdout: bytes
    stderr: bytes
    files: dict[str, bytes]


def commands() -> list[Command]:
    """Those whose compiler is there."""
    return [command for command in COMMANDS if shutil.which(command.line.split()[0], path=_path())]


def _path() -> str:
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])


def run_commands(seed: int, folder: Path) -> Iterator[Report]:
    """Reports without end, one for each command with its edits."""
    rng = random.Random(seed)
    number = 0
    while there := commands():
        for command in rng.sample(there, len(there)):
            number += 1
            own = folder / f"command-{number}"
            session = _Session(command, own, rng.choice(_SERVERS))
            yield session.run(*rng.sample(range(1, 4), 3))
            session.close()
            yield from run_folders(rng, own, 1)


def run_folders(rng: random.Random, folder: Path, count: int) -> Iterator[Report]:
    """Reports of generated projects, each with each compiler that is there."""
    compilers = [each for each in ("clang-19", "gcc") if shutil.which(each, path=_path())]
    for _ in range(count):
        for compiler in compilers:
            project = _Folders(folder, rng, compiler)
            yield project.run()
            project.close()


#: All that asks for one store may go by children of a server, that answer one request after another.
_SERVERS = ("auto", "off")


def _cachec(*args: str) -> list[str]:
    """A command line of cachec: where the current folder is in the search for modules no server is asked."""
    return [sys.executable, "-P", "-m", "cachec", *args]


class _Looks:
    """Runs command lines with a store of their own, and bare."""

    def __init__(self, folder: Path, server: str) -> None:
        self._folder = folder
        self._server = server
        self._store = folder / "store"
        self._report = Report(projects=1)

    def close(self) -> None:
        """Remove all of it; no server is left behind."""
        self._shown(_cachec("server", "stop"), self._folder, {})
        shutil.rmtree(self._folder)

    def _judge(self, what: str, shown: Shown, truth: Shown, before: int) -> tuple[str, str]:
        """The reason of the outcome that was told behind so many, and its detail."""
        outcomes = self._outcomes()[before:]
        reason = outcomes[-1].reason.value if outcomes else "bypass"
        detail = outcomes[-1].detail if outcomes else ""
        answer = {"reason": reason, "value": _differing(shown, truth), "truth": "", "detail": detail}
        judge(self._report, what, answer)
        return reason, detail

    def _outcomes(self) -> list[Outcome]:
        return [*read_log(self._store)] if self._store.exists() else []

    def _shown(self, line: list[str], folder: Path, env: dict[str, str], cwd: str = ".") -> Shown:
        kept = {path: path.read_bytes() for path in _files(folder)}
        own = {"PATH": _path(), "HOME": str(self._folder), "CACHEC_DIR": str(self._store), "CACHEC_LOG": "off"}
        own["CACHEC_SERVER"] = self._server
        done = subprocess.run(line, cwd=folder / cwd, env=own | env, capture_output=True, stdin=subprocess.DEVNULL)
        made = {str(path.relative_to(folder)): path.read_bytes() for path in _files(folder) if path not in kept}
        for name in made:
            (folder / name).unlink()
        for path, data in kept.items():
            assert path.read_bytes() == data, f"{line} changed {path}"
        return Shown(done.returncode, done.stdout, done.stderr, made)


class _Folders(_Looks):
    """One generated project, in folders with equal and with other files."""

    def __init__(self, folder: Path, rng: random.Random, compiler: str) -> None:
        super().__init__(folder, rng.choice(_SERVERS))
        self._rng = rng
        folder.mkdir(parents=True)
        if compiler == "gcc":
            (folder / "cachec.toml").write_text('[adapters]\nfiles = ["gcc.toml"]\n')
            (folder / "gcc.toml").write_text(_gcc_adapter())
        while True:
            self._layout = layout(rng, compiler)
            self._put("try", self._layout.files)
            if not self._shown(self._line("try"), self._place("try"), self._env("try")).status:
                break

    def run(self) -> Report:
        files = self._layout.files
        self._look("one", files, "first")
        self._look("two", files, "" if self._layout.stays else "moved")
        for number in range(3):
            folder = self._rng.choice(["one", "two", f"other{number}"])
            what, found = edited(self._rng, files)
            self._look(folder, found, what)
            self._look(folder, found, f"{what}, again")
            if self._rng.random() < 0.5:
                self._look(f"more{number}", files, "" if self._layout.stays else "moved")
        self._look("one", files, "back")
        return self._report

    def _look(self, folder: str, files: dict[str, str], what: str) -> None:
        self._put(folder, files)
        before = len(self._outcomes())
        line, place, env = self._line(folder), self._place(folder), self._env(folder)
        shown = self._shown(_cachec("exec", "--", *line), place, env)
        truth = self._shown(line, place, env)
        name = f"{self._layout.name} (base {self._layout.base!r}) in {folder}: {what}"
        reason, detail = self._judge(f"{name}\n{files}" if _differing(shown, truth) else name, shown, truth, before)
        self._report.cases += 1
        self._report.moved += what == "moved"
        if reason.startswith("bypass"):
            self._report.refused.append(f"{name}: {reason} {detail}")
        elif what == "moved" and reason != "hit":
            self._report.needless.append(f"{name}: {reason} {detail}\n{files}")

    def _put(self, folder: str, files: dict[str, str]) -> None:
        place = self._place(folder)
        shutil.rmtree(place, ignore_errors=True)
        for name, text in files.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text.startswith(LINK):
                path.symlink_to(text.removeprefix(LINK))
            else:
                path.write_text(text)

    def _place(self, folder: str) -> Path:
        return self._folder / folder / "p"

    def _line(self, folder: str) -> list[str]:
        return self._layout.line.replace("$P", str(self._place(folder))).split()

    def _env(self, folder: str) -> dict[str, str]:
        place = str(self._place(folder))
        env = {name: value.replace("$P", place) for name, value in self._layout.env.items()}
        base = {"": None, "checkout": os.path.dirname(place), "above": str(self._folder)}[self._layout.base]
        return env | ({} if base is None else {"CACHEC_BASE_DIR": base})


def _gcc_adapter() -> str:
    """That of clang, for gcc."""
    text = (SHIPPED / "clang.toml").read_text()
    return re.sub(r"(?m)^match = .*", 'match = ["gcc*", "*-gcc-*"]', text)


class _Session(_Looks):
    """One command in a store of its own."""

    def __init__(self, command: Command, folder: Path, server: str) -> None:
        super().__init__(folder, server)
        self._command = command

    def run(self, first: int, second: int, third: int) -> Report:
        one, other = self._folder / "one" / "p", self._folder / "other" / "p"
        self._look(one, first, "", "first")
        self._look(one, first, "neutral", "again")
        for number in (second, third):
            self._look(one, number, "decides", f"{first}->{number}")
            self._look(one, number, "neutral", f"{number} again")
        self._look(one, first, "neutral", "back")
        self._look(other, second, "decides", "another folder")
        self._look(other, first, "decides", "another folder, back")
        return self._report

    def _look(self, folder: Path, number: int, kind: str, what: str) -> None:
        command = self._command
        files = {
            name.replace("$S", str(number)): text.replace("$S", str(number)) for name, text in command.files.items()
        }
        _write(folder, files, number)
        if kind == "neutral":
            _write(folder, {f"unrelated-{what}.h": "#error\n"}, 1)
        env = {name: value.replace("$S", str(number)) for name, value in command.env.items()}
        # What a script or a command in a response file does is not known, so it may obey any variable.
        if kind == "neutral" and "@flags" not in command.line and not command.line.startswith("sh "):
            env["UNRELATED"] = what
        line = [word.replace("$S", str(number)) for word in command.line.split()]
        options = [word.replace("$S", str(number)) for word in command.options.split()]
        before = len(self._outcomes())
        shown = self._shown(_cachec("exec", *options, "--", *line), folder, env, command.cwd)
        truth = self._shown(line, folder, env, command.cwd)
        reason, detail = self._judge(f"{command.name} / {what}", shown, truth, before)
        self._report.cases += kind != ""
        if kind == "neutral":
            self._report.neutral += 1
            if reason.startswith("bypass"):
                if not command.may_pass:
                    self._report.refused.append(f"{command.name} / {what}: {reason} {detail}")
            elif reason != "hit" and not truth.status:
                self._report.needless.append(f"{command.name} / {what}: {reason} {detail}")


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _write(folder: Path, files: dict[str, str], number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name.removesuffix("?")
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("?") and number % 2 == 0:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_text() != text:
            path.write_text(text)


def _differing(shown: Shown, truth: Shown) -> str:
    """In words, in what two results differ; empty where they are equal."""
    found = [
        f"{name}: {ours!r} and not {theirs!r}"
        for name, ours, theirs in zip(Shown._fields, shown, truth, strict=True)
        if ours != theirs and name != "files"
    ]
    names = sorted(shown.files.keys() | truth.files.keys())
    return "; ".join(
        [*found, *(f"file {name} differs" for name in names if shown.files.get(name) != truth.files.get(name))]
    )
