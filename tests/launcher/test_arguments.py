"""What command lines say: inputs, outputs and flags of each known compiler."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachec.errors import UsageError
from cachec.launcher import adapters
from cachec.launcher.arguments import describe
from cachec.launcher.command import CommandSpec, Options
from cachec.launcher.options import parse
from tests.launcher.conftest import write


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.c", "a.cpp", "a.cu", "a.ll", "a.mlir", "b.mlir", "m.onnx", "w.bin", "x.h"):
        write(name, "x")
    for name in ("folder", "sub"):
        (tmp_path / name).mkdir()


def _described(
    tool: str, *args: str, options: Options | None = None, environ: dict[str, str] | None = None
) -> CommandSpec:
    program = os.path.abspath(write(f"tools/{tool}", "no script"))
    return describe(
        [tool, *args], program, os.getcwd(), adapters.find(program, tool), options or Options(), environ or {}
    )


def _paths(command: CommandSpec) -> tuple[list[str], list[str]]:
    """Inputs that no flag names, and outputs."""
    return (
        [os.path.relpath(each) for each in command.models.values()],
        [os.path.relpath(each.path) for each in command.outputs],
    )


@pytest.mark.parametrize(
    ("line", "inputs", "outputs"),
    [
        ("mytool a.c -o a.o", [], []),
        ("gcc -c a.c", ["a.c"], ["a.o"]),
        ("gcc -c a.c -MF deps -o sub/a.o", ["a.c"], ["deps", "sub/a.o"]),
        ("clang -c a.c -o a.o", ["a.c"], ["a.o"]),
        ("clang -c a.c -oa.o", ["a.c"], ["a.o"]),
        ("clang-19 -c a.c -L/x -I folder -Dx=1", ["a.c"], ["a.o"]),
        ("clang -S a.cpp -O2", ["a.cpp"], ["a.s"]),
        ("clang -c a.c -o sub/a.o -MD -MF deps -MT a.o", ["a.c"], ["sub/a.o", "deps"]),
        ("clang -c a.c -o a.o -include x.h", ["a.c"], ["a.o"]),
        ("clang -c a.c --serialize-diagnostics a.dia", ["a.c"], ["a.dia", "a.o"]),
        ("clang a.c -o a", ["a.c"], ["a"]),
        ("clang -E a.c", ["a.c"], []),
        ("clang -c a.c a.cpp", ["a.c", "a.cpp"], ["a.o"]),
        ("clang -c -x c++ a.c", ["a.c"], ["a.o"]),
        ("clang -c a.c -MD -MF -", ["a.c"], ["a.o"]),
        ("clang -c a.c -o k.o -MD -MF k.o", ["a.c"], ["k.o"]),
        ("clang -c a.c -o", ["a.c"], ["a.o"]),
        ("clang -c nothere.c -o a.o", [], ["a.o"]),
        ("clang -c a.c -o folder", ["a.c"], ["folder"]),
        ("mlir-opt a.mlir -o b.out --canonicalize", ["a.mlir"], ["b.out"]),
        ("mlir-opt a.mlir --o=b.out --pass-pipeline builtin.module(cse)", ["a.mlir"], ["b.out"]),
        ("mlir-opt a.mlir -o -", ["a.mlir"], []),
        ("mlir-opt folder", [], []),
        ("mlir-opt @rsp -- a.mlir", ["a.mlir"], []),
        ("mlir-translate --mlir-to-llvmir a.mlir -o a.ll2", ["a.mlir"], ["a.ll2"]),
        ("opt -passes=mem2reg a.ll -S -o b.ll", ["a.ll"], ["b.ll"]),
        ("llc -mtriple x86_64 a.ll -o a.s", ["a.ll"], ["a.s"]),
        ("llc a.ll", ["a.ll"], []),
        ("iree-compile a.mlir -o a.vmfb --iree-link-bitcode=w.bin", ["a.mlir"], ["a.vmfb"]),
        ("iree-compile a.mlir -o v --iree-vm-bytecode-source-listing=l", ["a.mlir"], ["v", "l"]),
        ("iree-import-onnx m.onnx -om.mlir --externalize-params --save-params-to p", ["m.onnx"], ["m.mlir", "p"]),
    ],
)
def test_inputs_and_outputs(line: str, inputs: list[str], outputs: list[str]) -> None:
    tool, *args = line.split()
    command = _described(tool, *args)
    assert _paths(command) == (inputs, outputs)
    assert [piece.text for piece in command.pieces] == args  # all of them count
    assert not command.stdin


@pytest.mark.parametrize(
    ("line", "is_known"),
    [
        ("mytool a.c", False),
        ("clang -c a.c -O2 -o a.o", True),
        ("clang a.c -o a", False),
        ("clang -c a.cu", False),
        ("clang -c a.c -fplugin=w.bin", False),
        ("gcc -c a.c -O2 -o a.o", True),
        ("g++ -g a.c a.o -o a -Wl,--as-needed -Wl,-rpath,/x", True),
        ("gcc a.c -o a -Wl,-O1,-plugin,w.bin", False),
        ("gcc a.c -o a -Xlinker --plugin=w.bin", False),
        ("gcc -c a.c -Wp,-fplugin=w.bin", False),
        ("gcc -x c a.c", False),
        ("gcc a.c -fuse-ld=lld", False),
        ("gcc a.cu", False),
        ("mlir-opt a.mlir --canonicalize", True),
        ("mlir-opt a.mlir --load-pass-plugin=w.bin", False),
        ("mlir-opt a.mlir @more", False),
        ("mlir-opt -- a.mlir", False),
        ("mlir-opt a.mlir --pass-pipeline=builtin.module(gpu-module-to-binary)", False),
        ("opt a.mlir -o b.bc -passes=function(dot-cfg,sroa<modify-cfg>)", False),
        ("opt a.mlir -o b.bc -passes=function(sroa<modify-cfg>)", True),
        ("iree-compile a.mlir -o a.vmfb --dump-compilation-phases-to=d", False),
    ],
)
def test_lines_by_which_a_command_may_run_what_its_adapter_does_not_know(line: str, is_known: bool) -> None:
    assert _described(*line.split()).is_known == is_known


def test_a_variable_and_a_script_of_which_an_adapter_says_nothing() -> None:
    line = ("llc", "a.ll")
    assert _described(*line, environ={"AMD_SPLIT_MODULE_LOG_DIR": ""}).is_known
    assert not _described(*line, environ={"AMD_SPLIT_MODULE_LOG_DIR": "/x"}).is_known
    script = os.path.abspath(write("script/llc", "#!/bin/sh\n"))
    assert not describe(line, script, os.getcwd(), adapters.find(script, "llc"), Options(), {}).is_known


def test_standard_input_and_output() -> None:
    assert _described("mlir-opt", "-").stdin
    assert _described("mytool", "/dev/stdin").stdin
    assert not _described("mlir-opt", "--canonicalize").stdin  # the tracer sees whether it reads that
    assert _described("mlir-opt", options=Options(stdin=True)).stdin


def test_each_argument_is_told_by_its_flag() -> None:
    command = _described("clang", "-c", "a.c", "-o", "a.o", "-Ifolder", "-L", "/x", "-O2", "-fnew=3", "nothere")
    assert [piece.label for piece in command.pieces] == [
        *("-c", "input", "-o", "-o", "-I", "-L", "-L", "-O2", "-fnew", "argument 2"),
    ]


def test_an_unknown_command_with_options() -> None:
    options, line = parse(["--input", "a.c", "--output=out", "--weights", "w.bin=opened", "--", "mytool", "a.c"])
    command = _described(*line, options=options)
    assert command.inputs == {os.path.abspath("a.c"): "a.c"}
    assert _paths(command) == ([], ["out"])
    assert command.weights == {os.path.abspath("w.bin"): "opened"}


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
