"""What command lines mean: inputs, outputs and flags of each known compiler, and what is left to the compiler."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cachec.errors import UsageError
from cachec.launcher import adapters, arguments
from cachec.launcher.arguments import describe
from cachec.launcher.command import Command, Options, PassThrough
from cachec.launcher.options import parse
from tests.launcher.conftest import write


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.c", "a.cpp", "a.cu", "a.ll", "a.mlir", "b.mlir", "m.onnx", "w.bin", "x.h"):
        write(name, "x")
    for name in ("inc", "inc2", "folder"):
        (tmp_path / name).mkdir()


def _described(tool: str, *args: str, options: Options | None = None, environ: dict[str, str] | None = None) -> Command:
    adapter = adapters.find(f"/nowhere/{tool}", tool)
    return describe([tool, *args], f"/nowhere/{tool}", os.getcwd(), adapter, options or Options(), environ or {})


def _names(paths: list[str]) -> list[str]:
    return [os.path.relpath(path) for path in paths]


@pytest.mark.parametrize(
    ("line", "inputs", "outputs"),
    [
        ("clang -c a.c -o a.o", ["a.c"], ["a.o"]),
        ("clang -c a.c -oa.o", ["a.c"], ["a.o"]),
        ("clang-19 -c a.c", ["a.c"], ["a.o"]),
        ("clang -S a.cpp -O2", ["a.cpp"], ["a.s"]),
        ("clang -c a.c -o sub/a.o -MD", ["a.c"], ["sub/a.o", "sub/a.d"]),
        ("clang -c a.c -o a.o -MMD -MF deps -MT a.o", ["a.c"], ["a.o", "deps"]),
        ("clang -c a.c -o a.o -MF deps", ["a.c"], ["a.o"]),
        ("clang -c a.c -o a.o -include x.h", ["a.c", "x.h"], ["a.o"]),
        ("clang -c a.c -o a.o --serialize-diagnostics a.dia", ["a.c"], ["a.o", "a.dia"]),
        ("clang -c -x ir a.ll -o a.o", ["a.ll"], ["a.o"]),
        ("clang -c -emit-llvm a.c -o a.bc", ["a.c"], ["a.bc"]),
        ("clang -c a.c -o a.o -Wl,-z -lfoo -fsomething=w.bin", ["a.c", "w.bin"], ["a.o"]),
        ("mlir-opt a.mlir -o b.out --canonicalize", ["a.mlir"], ["b.out"]),
        ("mlir-opt a.mlir --o=b.out", ["a.mlir"], ["b.out"]),
        ("mlir-opt -o b.out a.mlir --foo=1,w.bin", ["a.mlir", "w.bin"], ["b.out"]),
        ("mlir-opt a.mlir", ["a.mlir"], []),
        ("mlir-opt a.mlir -o -", ["a.mlir"], []),
        ("mlir-translate --mlir-to-llvmir a.mlir -o a.ll2", ["a.mlir"], ["a.ll2"]),
        ("opt -passes=mem2reg a.ll -S -o b.ll", ["a.ll"], ["b.ll"]),
        ("llc a.ll -filetype=obj -o a.o -mcpu x86-64", ["a.ll"], ["a.o"]),
        ("llc -mtriple x86_64 a.ll -o a.s", ["a.ll"], ["a.s"]),
        ("iree-compile a.mlir -o a.vmfb --iree-link-bitcode=w.bin", ["a.mlir", "w.bin"], ["a.vmfb"]),
        ("iree-opt a.mlir --pass-pipeline=builtin.module(x{path=w.bin})", ["a.mlir"], []),
        ("iree-import-onnx m.onnx -o m.mlir", ["m.onnx"], ["m.mlir"]),
        ("iree-import-onnx m.onnx -om.mlir --externalize-params --save-params-to p", ["m.onnx"], ["m.mlir", "p"]),
    ],
)
def test_inputs_and_outputs(line: str, inputs: list[str], outputs: list[str]) -> None:
    command = _described(*line.split())
    assert _names([each.path for each in command.inputs]) == inputs
    assert _names([each.path for each in command.outputs]) == outputs
    assert not command.stdin


@pytest.mark.parametrize(
    ("line", "reason", "words"),
    [
        ("mytool a.c", "unknown-command", "no adapter describes 'mytool'"),
        ("clang a.c -o a", "not-understood", "without any of -c, -S"),
        ("clang -E a.c", "not-understood", "'-E'"),
        ("clang -c a.c a.cpp", "not-understood", "more than one input"),
        ("clang -c a.cu", "not-understood", "an input of kind '.cu'"),
        ("clang -c -x cuda a.cu -o a.o", "not-understood", "-x cuda"),
        ("clang -c a.c -o a.o -fmodules", "not-understood", "'-fmodules'"),
        ("clang -c a.c -o a.o -fprofile-use=w.bin", "not-understood", "-fprofile-use=w.bin"),
        ("clang -c a.c -o a.o --sysroot=folder", "not-understood", "--sysroot"),
        ("opt a.mlir -o b.bc -passes=function(dot-cfg,sroa<modify-cfg>)", "side-effect-flag", "dot-cfg"),
        ("clang -c a.c -o a.o -gsplit-dwarf", "not-understood", "-gsplit-dwarf"),
        ("clang -c a.c -o a.o -fwhatever=folder", "not-understood", "'folder' is a folder"),
        ("clang -c -emit-llvm a.c", "not-understood", "-emit-llvm"),
        ("clang -c a.c -o", "not-understood", "lacks its value"),
        ("clang -c a.c -o a.o -v", "side-effect-flag", "-v"),
        ("clang -c a.c -o a.o -ftime-trace=x", "side-effect-flag", "-ftime-trace=x"),
        ("clang -c nothere.c -o a.o", "not-understood", "'nothere.c' (an argument) does not exist"),
        ("clang -c a.c -o a.o -include nothere.h", "not-understood", "'nothere.h' (-include nothere.h) does not exist"),
        ("clang -c a.c -o folder", "not-understood", "it is no regular file"),
        ("clang -c a.c -o /dev/null", "not-understood", "it is no regular file"),
        ("mlir-opt a.mlir b.mlir", "not-understood", "more than one input"),
        ("mlir-opt a.mlir -o a.mlir", "not-understood", "argument 1 is read, and written as -o a.mlir"),
        ("mlir-opt a.mlir --mlir-print-ir-after-all", "side-effect-flag", "--mlir-print-ir-after-all"),
        ("mlir-opt a.mlir --mlir-timing", "side-effect-flag", "--mlir-timing"),
        ("mlir-opt a.mlir -debug-only=x", "side-effect-flag", "-debug-only=x"),
        ("mlir-opt a.mlir --load-pass-plugin=w.bin", "not-understood", "--load-pass-plugin"),
        ("opt a.ll -time-passes", "side-effect-flag", "-time-passes"),
        ("llc a.ll", "not-understood", "without any of -o"),
        ("iree-compile a.mlir -o a.vmfb --iree-hal-dump-executable-files-to=d", "side-effect-flag", "--iree-hal-dump"),
        ("iree-compile a.mlir -o a.vmfb --dump-compilation-phases-to=d", "side-effect-flag", "--dump-compilation"),
        ("iree-compile a.mlir -o a --iree-hal-preprocess-executables-with=x", "not-understood", "--iree-hal-pre"),
        ("iree-import-onnx m.onnx -o m.mlir --externalize-params", "not-understood", "--externalize-params"),
        ("mlir-opt folder", "not-understood", "a folder"),
    ],
)  # fmt: skip
def test_what_is_left_to_the_compiler(line: str, reason: str, words: str) -> None:
    with pytest.raises(PassThrough) as caught:
        _described(*line.split())
    assert caught.value.reason.value == f"bypass:{reason}"
    assert words in caught.value.detail


def test_standard_input_and_output() -> None:
    assert _described("mlir-opt", "-").stdin
    assert _described("mlir-opt", "--canonicalize").stdin
    assert not _described("mlir-opt", "a.mlir", "-o", "-").outputs


def test_search_folders_in_order_with_those_of_variables() -> None:
    command = _described("clang", "-c", "a.c", "-Iinc", "-isystem", "inc2", "-I.", environ={"CPATH": "folder:inc"})
    assert _names(command.search) == ["inc", "inc2", ".", "folder", "inc"]


def test_response_files() -> None:
    write("args.rsp", '-c "a.c" @more.rsp')
    write("more.rsp", "-o a.o -DX='a b'")
    command = _described("clang", "@args.rsp")
    assert _names([each.path for each in command.inputs]) == ["a.c"]
    assert _names([output.path for output in command.outputs]) == ["a.o"]
    assert ("-D", "X=a b") in [(piece.label, piece.text) for piece in command.pieces]


@pytest.mark.parametrize("text", ["-c 'a.c", "\0"])
def test_a_response_file_that_is_none(text: str) -> None:
    write("args.rsp", text)
    with pytest.raises(PassThrough, match="a response file"):
        _described("clang", "@args.rsp")


def test_a_response_file_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str, **how: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    write("args.rsp", "-c a.c")
    monkeypatch.setattr(arguments, "open", refused, raising=False)
    with pytest.raises(PassThrough, match=r"that can't be read: .*Permission denied"):
        _described("clang", "@args.rsp")


def test_a_pass_is_no_file_of_its_name() -> None:
    for name in ("cse", "names.txt"):
        write(name, "x")
    pipeline = "--pass-pipeline=builtin.module(cse,other{file=names.txt})"
    command = _described("mlir-opt", "a.mlir", "-o", "b.out", pipeline)
    assert _names([each.path for each in command.inputs]) == ["a.mlir", "names.txt"]


@pytest.mark.parametrize(
    ("line", "place"), [("-o a.o -c a.c", (0, 2)), ("-c a.c -o a.o", (2, 4)), ("-oa.o -c a.c", (0, 1))]
)
def test_where_a_flag_stands(line: str, place: tuple[int, int]) -> None:
    (piece,) = (each for each in _described("clang", *line.split()).pieces if each.means == "output")
    assert (piece.begin, piece.end) == place


def test_which_pieces_are_in_the_key() -> None:
    command = _described("clang", "-c", "a.c", "-o", "a.o", "-Ifolder", "-L/x", "-O2", "-fnew=3", "-MF", "d")
    keyed = [(piece.label, piece.text) for piece in command.pieces]
    assert keyed == [
        ("-c", ""),
        ("input", "a.c"),
        ("-o", None),
        ("-I", "folder"),
        ("-L", None),
        ("-O2", ""),
        ("-fnew", "3"),
        ("-MF", None),
    ]


def test_an_output_counts_by_name_where_a_depfile_names_it() -> None:
    command = _described("clang", "-c", "a.c", "-o", "a.o", "-MD", "-MF", "d")
    assert ("-o", "-o\0a.o") in [(piece.label, piece.text) for piece in command.pieces]


def test_debug_information_makes_the_folder_count() -> None:
    assert not _described("clang", "-c", "a.c").sees_cwd
    assert _described("clang", "-c", "a.c", "-g").sees_cwd
    assert _described("clang", "-c", "a.c", "-gdwarf-4").sees_cwd


def test_two_outputs_with_one_name() -> None:
    with pytest.raises(UsageError, match=r"--serialize-diagnostics a\.o and -o a\.o are one output"):
        _described("clang", "-c", "a.c", "-o", "a.o", "--serialize-diagnostics", "a.o")
    with pytest.raises(UsageError, match="two outputs need two names"):
        _described("mytool", options=Options(inputs=("a.c",), outputs=("x", "./x")))


def test_an_unknown_command_with_options() -> None:
    options, line = parse(["--input", "a.c", "--output=out", "--weights", "w.bin=opened", "--", "mytool", "a.c"])
    command = _described(*line, options=options)
    assert _names([each.path for each in command.inputs]) == ["a.c"]
    assert command.weights == {os.path.abspath("w.bin"): "opened"}
    assert command.sees_cwd


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["clang", "-c"], "no command: put it behind '--': cachec exec -- clang"),
        ([], "no command"),
        (["--"], "no command behind '--'"),
        (["--imput", "x", "--", "a"], "'--imput' is no option of cachec exec; did you mean --input?"),
        (["--input", "--", "a"], "--input needs a value; nothing follows it"),
        (["--input=", "--", "a"], "--input needs a value, found an empty one"),
    ],
)
def test_bad_options(args: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(args)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(inputs=("nothere",)), "--input nothere: there is no such file"),
        (Options(outputs=("x",), weights={"nothere": "content"}), "--weights nothere: there is no such file"),
        (
            Options(outputs=("x",), weights={"w=bad": "content"}),
            "--weights w=bad: there is no such file; behind = stands content or opened or name",
        ),
    ],
)
def test_bad_paths_in_options(options: Options, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        _described("mytool", options=options)
    assert words in str(caught.value)


def test_weights_and_their_keys() -> None:
    options, _ = parse(["--weights", "a=b.bin", "--weights", "c.bin=name", "--weights=d=content", "--", "x"])
    assert options.weights == {"a=b.bin": "content", "c.bin": "name", "d": "content"}
