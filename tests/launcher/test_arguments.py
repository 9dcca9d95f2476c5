"""What command lines mean: inputs, outputs and flags of each known compiler, and which lines count as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachec.errors import UsageError
from cachec.launcher import adapters
from cachec.launcher.adapters import Flag
from cachec.launcher.arguments import describe
from cachec.launcher.command import Command, Options
from cachec.launcher.options import parse
from tests.launcher.conftest import write


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.c", "a.cpp", "a.cu", "a.ll", "a.mlir", "b.mlir", "m.onnx", "w.bin", "x.h"):
        write(name, "x")
    for name in ("folder", "sub"):
        (tmp_path / name).mkdir()


def _described(tool: str, *args: str, options: Options | None = None, environ: dict[str, str] | None = None) -> Command:
    program = os.path.abspath(write(f"tools/{tool}", "no script"))
    return describe(
        [tool, *args], program, os.getcwd(), adapters.find(program, tool), options or Options(), environ or {}
    )


def _paths(command: Command) -> tuple[list[str], list[str]]:
    """Inputs and outputs."""
    found = [each.path for each in command.inputs], [each.path for each in command.outputs]
    return found[0] and list(map(os.path.relpath, found[0])), list(map(os.path.relpath, found[1]))


@pytest.mark.parametrize(
    ("line", "inputs", "outputs"),
    [
        ("clang -c a.c -o a.o", ["a.c"], ["a.o"]),
        ("clang -c a.c -oa.o", ["a.c"], ["a.o"]),
        ("clang-19 -c a.c -L/x -I folder -Dx=1", ["a.c"], ["a.o"]),
        ("clang -S a.cpp -O2", ["a.cpp"], ["a.s"]),
        ("clang -c a.c -o sub/a.o -MD -MF deps -MT a.o", ["a.c"], ["sub/a.o", "deps"]),
        ("clang -c a.c -o a.o -include x.h", ["a.c", "x.h"], ["a.o"]),
        ("clang -c a.c --serialize-diagnostics a.dia", ["a.c"], ["a.o", "a.dia"]),
        ("mlir-opt a.mlir -o b.out --canonicalize", ["a.mlir"], ["b.out"]),
        ("mlir-opt a.mlir --o=b.out --pass-pipeline builtin.module(cse)", ["a.mlir"], ["b.out"]),
        ("mlir-opt a.mlir --mlir-print-ir-after-all --some-pass file=w.bin", ["a.mlir"], []),
        ("mlir-opt a.mlir -o -", ["a.mlir"], []),
        ("mlir-translate --mlir-to-llvmir a.mlir -o a.ll2", ["a.mlir"], ["a.ll2"]),
        ("opt -passes=mem2reg a.ll -S -o b.ll", ["a.ll"], ["b.ll"]),
        ("llc -mtriple x86_64 a.ll -o a.s", ["a.ll"], ["a.s"]),
        ("iree-compile a.mlir -o a.vmfb --iree-link-bitcode=w.bin", ["a.mlir"], ["a.vmfb"]),
        ("iree-compile a.mlir -o v --iree-vm-bytecode-source-listing=l", ["a.mlir"], ["v", "l"]),
        ("iree-import-onnx m.onnx -om.mlir --externalize-params --save-params-to p", ["m.onnx"], ["m.mlir", "p"]),
    ],
)
def test_inputs_and_outputs(line: str, inputs: list[str], outputs: list[str]) -> None:
    command = _described(*line.split())
    assert not command.is_plain
    assert _paths(command) == (inputs, outputs)
    assert not command.stdin


@pytest.mark.parametrize(
    ("line", "outputs"),
    [
        ("mytool a.c -o a.o", []),
        ("gcc -c a.c", ["a.o"]),
        ("gcc -c a.c -MF deps -o sub/a.o", ["deps", "sub/a.o"]),
        ("clang a.c -o a", ["a"]),
        ("clang -E a.c", []),
        ("clang -c a.c a.cpp", ["a.o"]),
        ("clang -c a.cu", ["a.o"]),
        ("clang -c -x c++ a.c", ["a.o"]),
        ("clang -c a.c -MMD", ["a.o"]),
        ("clang -c a.c -MD -MF -", ["-", "a.o"]),
        ("clang -c a.c -o k.o -MD -MF k.o", ["k.o"]),
        ("clang -c a.c -o", ["a.o"]),
        ("clang -c nothere.c -o a.o", ["a.o"]),
        ("clang -c a.c -o a.o -include nothere.h", ["a.o"]),
        ("clang -c a.c -o folder", ["folder"]),
        ("clang -c a.c -o /dev/stdout", ["/dev/stdout"]),
        ("clang -c a.c -o a.o -gsplit-dwarf", ["a.o"]),
        ("opt a.mlir -o b.bc -passes=function(dot-cfg,sroa<modify-cfg>)", ["b.bc"]),
        ("mlir-opt a.mlir --load-pass-plugin=w.bin", []),
        ("mlir-opt folder", []),
        ("mlir-opt @rsp -- a.mlir", []),
        ("llc a.ll", []),
        ("iree-compile a.mlir -o a.vmfb --dump-compilation-phases-to=d", ["a.vmfb"]),
    ],
)
def test_what_no_adapter_describes_counts_as_it_is(line: str, outputs: list[str]) -> None:
    tool, *args = line.split()
    command = _described(tool, *args)
    assert command.is_plain
    assert [piece.text for piece in command.pieces] == args
    assert command.sees_cwd
    assert {os.path.relpath(each.path) for each in command.outputs} == {os.path.relpath(each) for each in outputs}


def test_a_variable_and_a_script_of_which_an_adapter_says_nothing() -> None:
    line = ("clang", "-c", "a.c")
    assert not _described(*line, environ={"SDKROOT": ""}).is_plain
    assert _described(*line, environ={"SDKROOT": "/x"}).is_plain
    script = os.path.abspath(write("script/clang", "#!/bin/sh\n"))
    assert describe(line, script, os.getcwd(), adapters.find(script, "clang"), Options(), {}).is_plain


#: A line of each shipped adapter that is described.
DESCRIBED_LINES = {
    "clang": "-c a.c -o a.o",
    "iree-compile": "a.mlir -o a.out",
    "iree-import-onnx": "m.onnx -o a.out",
    "iree-opt": "a.mlir -o a.out",
    "llc": "a.ll -o a.out",
    "mlir-opt": "a.mlir -o a.out",
    "mlir-translate": "a.mlir -o a.out",
    "opt": "a.ll -o a.out",
}

#: What does not count by the name of its value, and what no adapter describes.
SKIPPED = {"output", "output-folder", "extra-output", "depfile", "path-only", "plain"}


def _ways(name: str, takes: tuple[str, ...], value: str) -> list[list[str]]:
    """Return the ways to write a flag with a value, or with none for the empty one."""
    if name.endswith("*"):
        begin = name[:-1]
        return [[f"{begin}{value}"], [f"{begin}={value}"], [f"{begin}x={value}"], [f"{begin}x", value]]
    forms = {"next": [name, value], "joined": [f"{name}{value}"], "equals": [f"{name}={value}"]}
    return [forms[each] for each in takes] or [[name, value]]


def _keyed(tool: str, args: list[str]) -> object:
    """Return all of a command line that is in its key; None for one that counts as it is."""
    command = _described(tool, *DESCRIBED_LINES[tool].split(), *args)
    if command.is_plain:
        return None
    return [(piece.label, piece.text) for piece in command.pieces], command.inputs, command.weights


@pytest.mark.parametrize("tool", DESCRIBED_LINES)
def test_two_values_of_each_flag_give_two_keys(tool: str) -> None:
    adapter = adapters.read(adapters.SHIPPED / f"{tool}.toml")
    plain = _keyed(tool, [])
    assert plain is not None
    understood = 0
    values = ("w.bin", "x.h", "c", "c++", "x86_64-linux-gnu", "aarch64", "4", "5")
    for flag in (*adapter.flags, Flag(names=("-new", "-new*"), means="value", takes=("next", "equals"))):
        for name in flag.names if flag.means not in SKIPPED else ():
            for dashes in {name, "-" + name if adapter.dashes == "either" else name}:
                ways = zip(*(_ways(dashes, flag.takes, value) for value in values), strict=True)
                for way in ways:
                    keys = [key for key in (_keyed(tool, args) for args in way) if key is not None]
                    assert all(keys.count(key) == 1 for key in keys), way
                    assert plain not in keys, way
                    understood += len(keys)
    assert understood > len(values)


def test_every_shipped_adapter_is_in_the_table() -> None:
    assert {path.stem for path in adapters.SHIPPED.glob("*.toml")} == {*DESCRIBED_LINES, "gcc"}


@pytest.mark.parametrize("form", ["-f", "-f=", "-fx", "-f=x", "-f x"])
def test_a_flag_with_an_empty_value_is_another_one(form: str) -> None:
    forms = ["-f", "-f=", "-fx", "-f=x", "-f x"]
    keys = [_keyed("mlir-opt", each.split()) for each in forms]
    assert keys.count(_keyed("mlir-opt", form.split())) == 1


def test_standard_input_and_output() -> None:
    assert _described("mlir-opt", "-").stdin
    assert _described("mlir-opt", "--canonicalize").stdin
    assert not _described("mlir-opt", "a.mlir", "-o", "-").outputs


def test_response_files() -> None:
    write("args.rsp", '-c "a.c" @more.rsp')
    write("more.rsp", "-o a.o -DX='a b'")
    command = _described("clang", "@args.rsp")
    assert _paths(command) == (["a.c"], ["a.o"])
    assert ("-D", "X=a b") in [(piece.label, piece.text) for piece in command.pieces]


@pytest.mark.parametrize("text", ["-c 'a.c", "\0"])
def test_a_response_file_that_is_none(text: str) -> None:
    write("args.rsp", text)
    assert _described("clang", "@args.rsp").is_plain


@pytest.mark.parametrize(
    ("line", "place"), [("-o a.o -c a.c", (0, 2)), ("-c a.c -o a.o", (2, 4)), ("-oa.o -c a.c", (0, 1))]
)
def test_where_a_flag_stands(line: str, place: tuple[int, int]) -> None:
    (piece,) = (each for each in _described("clang", *line.split()).pieces if each.means == "output")
    assert (piece.begin, piece.end) == place


def test_which_pieces_are_in_the_key() -> None:
    command = _described("clang", "-c", "a.c", "-o", "a.o", "-Ifolder", "-L/x", "-O2", "-fnew=3")
    keyed = [(piece.label, piece.text) for piece in command.pieces]
    assert keyed == [
        ("-c", ""),
        ("input", "a.c"),
        ("-o", None),
        ("-I", "folder"),
        ("-L", None),
        ("-O2", ""),
        ("-fnew", "3"),
    ]


def test_an_output_counts_by_name_where_a_depfile_names_it() -> None:
    command = _described("clang", "-c", "a.c", "-o", "a.o", "-MD", "-MF", "d")
    assert ("-o", "-o\0a.o") in [(piece.label, piece.text) for piece in command.pieces]


def test_debug_information_makes_the_folder_count() -> None:
    assert not _described("clang", "-c", "a.c").sees_cwd
    assert _described("clang", "-c", "a.c", "-g").sees_cwd
    assert _described("clang", "-c", "a.c", "-gdwarf-4").sees_cwd


def test_two_outputs_with_one_name() -> None:
    with pytest.raises(UsageError, match=r"--output a\.o and -o a\.o are one output"):
        _described("clang", "-c", "a.c", "-o", "a.o", options=Options(outputs=("a.o",)))


def test_an_unknown_command_with_options() -> None:
    options, line = parse(["--input", "a.c", "--output=out", "--weights", "w.bin=opened", "--", "mytool", "a.c"])
    command = _described(*line, options=options)
    assert _paths(command) == (["a.c"], ["out"])
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
