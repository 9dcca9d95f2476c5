"""What command lines mean: inputs, outputs and flags of each known compiler, and what is left to the compiler."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cachec.errors import UsageError
from cachec.launcher import adapters, arguments
from cachec.launcher.adapters import Flag
from cachec.launcher.arguments import describe
from cachec.launcher.command import Command, Options, PassThrough
from cachec.launcher.options import parse
from tests.launcher.conftest import write


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named = ("w.bin", "x.h", "w@1.bin", "y;z")
    for name in ("a.c", "a.cpp", "a.cu", "a.ll", "a.mlir", "b.mlir", "m.onnx", *named):
        write(name, "x")
    for name in ("inc", "inc2", "folder", "sub"):
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
        *(
            (f"{tool} a.mlir {flag}{between}builtin.module(x{{path={value}}})", ["a.mlir", name], [])
            for between in ("=", " ")
            for tool, flag in (
                ("iree-opt", "--pass-pipeline"),
                ("mlir-opt", "--pass-pipeline"),
                ("iree-compile", "-o - --iree-preprocessing-pass-pipeline"),
            )
            for value, name in (("w.bin", "w.bin"), ('"w@1.bin"', "w@1.bin"), ("y;z", "y;z"))
        ),
        ("mlir-opt a.mlir --some-pass file=w.bin", ["a.mlir", "w.bin"], []),
        ("iree-compile a.mlir -o v --iree-vm-bytecode-source-listing=l", ["a.mlir"], ["v", "l"]),
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
        ("clang -c a.c -o none/a.o", "not-understood", "none' is no folder that can be written to"),
        ("mlir-opt a.mlir -o x.h/b.out", "not-understood", "x.h' is no folder that can be written to"),
        ("clang -c a.c -o a.o -MD -MF -", "not-understood", "-MF -': not the name of a file"),
        ("clang -c a.c -o a.o --serialize-diagnostics -", "not-understood", "not the name of a file"),
        ("clang -c a.c -o k.o -MD -MF k.o", "not-understood", "-MF k.o and -o k.o are one output"),
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


#: A line of each shipped adapter that is understood.
PLAIN_LINES = {
    "clang": "-c a.c -o a.o",
    "iree-compile": "a.mlir -o a.out",
    "iree-import-onnx": "m.onnx -o a.out",
    "iree-opt": "a.mlir -o a.out",
    "llc": "a.ll -o a.out",
    "mlir-opt": "a.mlir -o a.out",
    "mlir-translate": "a.mlir -o a.out",
    "opt": "a.ll -o a.out",
}

#: What does not count by the name of its value.
PLACES = {"output", "output-folder", "extra-output", "depfile", "path-only"}


def _ways(name: str, takes: tuple[str, ...], value: str) -> list[list[str]]:
    """Return the ways to write a flag with a value, or with none for the empty one."""
    if name.endswith("*"):
        begin = name[:-1]
        return [[f"{begin}{value}"], [f"{begin}={value}"], [f"{begin}x={value}"], [f"{begin}x", value]]
    forms = {"next": [name, value], "joined": [f"{name}{value}"], "equals": [f"{name}={value}"]}
    return [forms[each] for each in takes] or [[name, value]]


def _keyed(tool: str, args: list[str]) -> object:
    """Return all of a command line that is in its key; None for one that is left to the compiler."""
    try:
        command = _described(tool, *PLAIN_LINES[tool].split(), *args)
    except PassThrough:
        return None
    return [(piece.label, piece.text) for piece in command.pieces], command.inputs, command.weights, command.search


@pytest.mark.parametrize("tool", PLAIN_LINES)
def test_two_values_of_each_flag_give_two_keys(tool: str) -> None:
    adapter = adapters.read(adapters.SHIPPED / f"{tool}.toml")
    plain = _keyed(tool, [])
    assert plain is not None
    understood = 0
    values = ("w.bin", "x.h", "c", "c++", "x86_64-linux-gnu", "aarch64", "4", "5")
    for flag in (*adapter.flags, Flag(names=("-new", "-new*"), means="value", takes=("next", "equals"))):
        for name in flag.names if flag.means not in PLACES else ():
            for dashes in {name, "-" + name if adapter.dashes == "either" else name}:
                ways = zip(*(_ways(dashes, flag.takes, value) for value in values), strict=True)
                for way in ways:
                    keys = [key for key in (_keyed(tool, args) for args in way) if key is not None]
                    assert all(keys.count(key) == 1 for key in keys), way
                    assert plain not in keys, way
                    understood += len(keys)
    assert understood > len(values)


def test_every_shipped_adapter_is_in_the_table() -> None:
    assert {path.stem for path in adapters.SHIPPED.glob("*.toml")} == set(PLAIN_LINES)


@pytest.mark.parametrize("form", ["-f", "-f=", "-fx", "-f=x", "-f x"])
def test_a_flag_with_an_empty_value_is_another_one(form: str) -> None:
    forms = ["-f", "-f=", "-fx", "-f=x", "-f x"]
    keys = [_keyed("mlir-opt", each.split()) for each in forms]
    assert keys.count(_keyed("mlir-opt", form.split())) == 1


#: What a flag means -> what of a command its value goes to.
VALUED = {
    **dict.fromkeys(("input", "pipeline"), "inputs"),
    **dict.fromkeys(("output", "output-folder", "extra-output"), "outputs"),
    **{"weights": "weights", "search": "search"},
}


@pytest.mark.parametrize(("means", "field"), VALUED.items(), ids=VALUED)
@pytest.mark.parametrize("line", ["--in-x=NAME", "--in-=NAME", "--in-x NAME"])
def test_the_value_of_a_flag_with_a_star(tmp_path: Path, means: str, field: str, line: str) -> None:
    name = "new" if field == "outputs" else "folder" if means == "search" else "w.bin"
    takes = '["equals", "next"]'
    flags = f'flags = [\n  {{ names = ["--in-*"], takes = {takes}, is = "{means}" }},\n]\n'
    write("own.toml", f'match = ["own"]\nstdout = true\npositional = "input"\n{flags}')
    adapter = adapters.read("own.toml")
    value = f"x{{path={name}}}" if means == "pipeline" else name
    args = line.replace("NAME", value).split()
    command = describe(["own", "a.c", *args], "/nowhere/own", os.getcwd(), adapter, Options(), {})
    found = getattr(command, field)
    paths = [*found] if field in {"weights", "search"} else [each.path for each in found]
    assert name in map(os.path.basename, paths)


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
    for flags in (("-MD", "-MF", "a.o"), ("--serialize-diagnostics", "a.o")):
        with pytest.raises(PassThrough, match="are one output"):  # the compiler decides
            _described("clang", "-c", "a.c", "-o", "a.o", *flags)
    with pytest.raises(UsageError, match=r"--output a\.o and -o a\.o are one output"):
        _described("clang", "-c", "a.c", "-o", "a.o", options=Options(outputs=("a.o",)))
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
