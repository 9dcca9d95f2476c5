"""`cachec audit` on small tools and on real compilers: each kind of finding, and its absence."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cachec.audit.runs import CommandEnded
from cachec.audit.substitute import substituted
from cachec.cli import main
from cachec.errors import UsageError
from cachec.events import read_log
from cachec.launcher import full
from cachec.launcher.adapters import SHIPPED
from cachec.weights import WeightSet
from tests.needs import need

from .conftest import COPY, Auditor

DESCRIBED = ("--input", "in.txt", "--output", "out.txt")


def test_a_command_that_is_covered(auditor: Auditor) -> None:
    tool = auditor.tool("copy", COPY)
    found = auditor.run(tool, "in.txt", "out.txt", options=DESCRIBED)
    assert found.outcome == "described"
    assert not found.problems
    assert found.deterministic is True
    assert found.covered[str(auditor.folder / "in.txt")] == "input in.txt"
    assert found.outputs == (str(auditor.folder / "out.txt"),)
    assert not found.options
    assert Path("out.txt").read_text() == "model\n"


def test_nothing_is_stored_or_counted(auditor: Auditor, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = auditor.folder / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    auditor.run(auditor.tool("copy", COPY), "in.txt", "out.txt", options=DESCRIBED)
    assert not list(temporary.iterdir())
    assert not list(read_log(os.environ["CACHEC_DIR"]))
    assert not (Path(os.environ["CACHEC_DIR"]) / "objects").exists()


def test_an_unknown_command_gets_its_options(auditor: Auditor, capfd: pytest.CaptureFixture[str]) -> None:
    tool = auditor.tool("mycc", f'{COPY}\nread -r more < extra.cfg; echo "$more" >> "$2"')
    Path("extra.cfg").write_text("more\n")
    found = auditor.run(tool, "in.txt", "out.txt")
    assert found.outcome == "bypass:unknown-command"
    assert found.options == ("--input", "in.txt", "--input", "extra.cfg", "--output", "out.txt")
    assert not auditor.problems(tool, "in.txt", "out.txt", options=found.options)  # and they are enough
    assert full.main([*found.options, "--", tool, "in.txt", "out.txt"]) == 0
    assert [each.reason.value for each in read_log(os.environ["CACHEC_DIR"])] == ["miss:new-input"]


@pytest.mark.parametrize(
    ("words", "take"),
    [
        (("-O2", "-o", "out.txt", "in.txt"), '[ "$2" = -o ]; set -- "$4" "$3"; '),
        (("-c", "in.txt", "-o", "out.txt"), '[ "$3" = -o ]; set -- "$2" "$4"; '),
        (("--from=in.txt", "-o", "out.txt"), '[ "$2" = -o ]; set -- "${1#*=}" "$3"; '),
    ],
)
def test_an_unknown_command_gets_an_adapter_that_works(auditor: Auditor, words: tuple[str, ...], take: str) -> None:
    line = (auditor.tool("mycc", take + COPY), *words)
    found = auditor.run(*line)
    assert 'match = ["mycc"]' in found.adapter
    assert '{ names = ["-o"], takes = ["next"], is = "output" },' in found.adapter
    Path("cachec.toml").write_text(found.adapter)
    again = auditor.run(*line)
    assert again.outcome == "described"
    assert again.stage == "exec:mycc"
    assert not again.problems
    for text, reason in (("model\n", "miss:new-input"), ("model\n", "hit"), ("another\n", "miss:file-changed")):
        Path("in.txt").write_text(text)
        assert full.main(["--", *line]) == 0
        assert Path("out.txt").read_text() == text
        assert [each.reason.value for each in read_log(os.environ["CACHEC_DIR"])][-1] == reason


def test_what_no_word_names_no_adapter_covers(auditor: Auditor) -> None:
    Path("header").write_text("x\n")
    tool = auditor.tool("mycc", f'[ "$2" = -o ]; set -- "$1" "$3"; {COPY}; read -r x < header')
    found = auditor.run(tool, "in.txt", "-o", "out.txt")
    assert found.options == ("--input", "in.txt", "--input", "header", "--output", "out.txt")
    assert found.adapter == ""


def test_files_that_only_their_order_tells_apart_get_no_adapter(auditor: Auditor) -> None:
    assert auditor.run(auditor.tool("copy", COPY), "in.txt", "out.txt").adapter == ""


def test_a_file_beside_the_input(auditor: Auditor) -> None:
    Path("extra.cfg").write_text("x\n")
    tool = auditor.tool("mycc", f"{COPY}\nread -r x < extra.cfg")
    assert auditor.problems(tool, "in.txt", "out.txt", options=DESCRIBED) == [("read", "extra.cfg")]
    assert not auditor.problems(tool, "in.txt", "out.txt", options=(*DESCRIBED, "--input", "extra.cfg"))


def test_a_link_to_the_input_is_the_input(auditor: Auditor) -> None:
    Path("link.txt").symlink_to("in.txt")
    tool = auditor.tool("mycc", f"set -- link.txt out.txt; {COPY}")
    assert not auditor.problems(tool, options=DESCRIBED)


def test_a_program_that_is_started(auditor: Auditor) -> None:
    tool = auditor.tool("mycc", 'cat "$1" > "$2"')
    found = auditor.run(tool, "in.txt", "out.txt", options=DESCRIBED)
    assert [(each.kind, Path(each.path).name, each.fix) for each in found.problems] == [
        ("program", "cat", "--tool cat")
    ]
    assert not auditor.problems(tool, "in.txt", "out.txt", options=(*DESCRIBED, "--tool", "cat"))


def test_folders_of_children_and_threads(auditor: Auditor) -> None:
    Path("sub").mkdir()
    Path("sub/inner.cfg").write_text("x")
    text = """
import os, pathlib, threading
def child():
    if os.fork() == 0:
        os.chdir("sub")
        open("inner.cfg").read()
        os._exit(0)
    os.wait()
thread = threading.Thread(target=child)
thread.start(); thread.join()
open("in.txt").read()
"""
    tool = auditor.python("mycc", f"{text}\n{WRITES}")
    assert auditor.problems(tool, options=DESCRIBED) == [("read", "sub/inner.cfg")]


def test_a_file_that_is_no_output(auditor: Auditor) -> None:
    tool = auditor.tool("mycc", f"{COPY}\necho x > side.txt")
    assert auditor.problems(tool, "in.txt", "out.txt", options=DESCRIBED) == [("written", "side.txt")]
    assert not auditor.problems(tool, "in.txt", "out.txt", options=(*DESCRIBED, "--output", "side.txt"))


def test_a_temporary_file_is_no_finding(auditor: Auditor) -> None:
    text = "import os, shutil\nshutil.copyfile('in.txt', 'tmp.txt')\nos.rename('tmp.txt', 'out.txt')"
    assert not auditor.problems(auditor.python("mycc", text), options=DESCRIBED)


def test_an_output_behind_a_link(auditor: Auditor) -> None:
    Path("real").mkdir()
    Path("link").symlink_to("real")
    text = "import os, shutil\nshutil.copyfile('in.txt', 'real/tmp')\nos.rename('real/tmp', 'real/out.txt')"
    found = auditor.run(auditor.python("mycc", text), options=("--input", "./in.txt", "--output", "./link/out.txt"))
    assert not found.problems
    assert found.deterministic is True


def test_a_file_that_is_removed(auditor: Auditor) -> None:
    # The second run finds nothing to remove, and nothing is wrong with that.
    tool = auditor.python("mycc", f"import os, pathlib\nif os.path.exists('old'): os.remove('old')\n{WRITES}")
    Path("old").touch()
    assert auditor.problems(tool, options=DESCRIBED) == [("removed", "old")]


WRITES = "pathlib.Path('out.txt').write_bytes(pathlib.Path('in.txt').read_bytes())"


def test_an_output_that_is_not_written(auditor: Auditor) -> None:
    tool = auditor.tool("mycc", COPY)
    options = (*DESCRIBED, "--output", "more.txt")
    found = auditor.run(tool, "in.txt", "out.txt", options=options)
    assert [each.kind for each in found.problems] == ["not-written", "kept-out"]
    Path("more.txt").write_text("from before")
    kinds = [kind for kind, _ in auditor.problems(tool, "in.txt", "out.txt", options=options)]
    assert "not-written" in kinds  # it was left as it was


def test_an_output_that_is_read_first(auditor: Auditor) -> None:
    Path("out.txt").write_text("before\n")
    tool = auditor.python("mycc", "t = open('out.txt').read(); open('out.txt', 'w').write(open('in.txt').read())")
    assert ("own-output", "out.txt") in auditor.problems(tool, options=DESCRIBED)


def test_a_folder_that_is_listed(auditor: Auditor) -> None:
    Path("parts").mkdir()
    Path("parts/a").write_text("a")
    tool = auditor.python("mycc", f"import os, pathlib\nos.listdir('parts')\n{WRITES}")
    assert auditor.problems(tool, options=DESCRIBED) == [("listing", "parts")]
    assert not auditor.problems(tool, options=(*DESCRIBED, "--input", "parts"))


def test_a_folder_that_it_writes_to_is_no_input(auditor: Auditor) -> None:
    Path("d").mkdir()
    tool = auditor.python("mycc", "import os\nos.listdir('d')\nopen('d/out', 'w').write(open('in.txt').read())")
    found = auditor.run(tool, options=("--input", "in.txt", "--output", "d/out"))
    assert [(each.kind, each.fix) for each in found.problems] == [("listing", "")]


def test_what_is_looked_for_in_vain_is_a_note(auditor: Auditor) -> None:
    tool = auditor.tool("mycc", f"{COPY}\n[ ! -e override.cfg ] || exit 1")
    found = auditor.run(tool, "in.txt", "out.txt", options=DESCRIBED)
    assert not found.problems
    assert ("missed", "override.cfg") in [(each.kind, auditor.shown(each.path)) for each in found.notes]


def test_a_server_is_told(auditor: Auditor) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        text = f"import socket, pathlib\nsocket.create_connection(('127.0.0.1', {port}))\n{WRITES}"
        found = auditor.problems(auditor.python("mycc", text), options=DESCRIBED)
    assert ("server", f"127.0.0.1:{port}") in found


def test_two_runs_that_differ(auditor: Auditor) -> None:
    random = "open('/proc/sys/kernel/random/uuid').read()"
    found = auditor.run(
        auditor.python("mycc", f"open('out.txt', 'w').write(open('in.txt').read() + {random})"), options=DESCRIBED
    )
    assert [(each.kind, auditor.shown(each.path)) for each in found.problems] == [("differs", "out.txt")]
    assert found.deterministic is False


def test_two_runs_that_print_another_thing(auditor: Auditor) -> None:
    tool = auditor.tool("mycc", f"{COPY}\necho $$")
    assert auditor.problems(tool, "in.txt", "out.txt", options=DESCRIBED) == [("differs", "stdout")]


# --- weights


@pytest.fixture
def weights(auditor: Auditor) -> str:
    held = WeightSet.from_arrays({"a": np.arange(12, dtype="f4").reshape(3, 4), "b": np.ones(2, "i8")})
    held.save("w.safetensors")
    return "w.safetensors"


#: Writes the input, and of the weights what the word says.
WEIGHTS = """
import sys
source, out, path, part = sys.argv[1:]
path = path.partition("=")[2]
data = open(path, "rb").read() if part != "name" else b""
seen = {"all": data, "size": str(len(data)).encode(), "name": b""}[part]
open(out, "wb").write(open(source, "rb").read() + seen)
"""


@pytest.mark.parametrize(
    ("part", "key", "opened", "changes", "kinds"),
    [
        ("all", "content", True, True, []),
        ("all", "opened", True, True, []),
        ("all", "name", True, True, ["weights-read"]),
        ("size", "content", True, False, ["weights-unread"]),
        ("name", "content", False, False, ["weights-unread"]),
        ("name", "opened", False, False, []),
        ("name", "name", False, False, []),
    ],
)
@pytest.mark.sampled
def test_whether_the_bytes_of_weights_count(
    auditor: Auditor, weights: str, part: str, key: str, opened: bool, changes: bool, kinds: list[str]
) -> None:
    tool = auditor.python("mycc", WEIGHTS)
    before = Path(weights).read_bytes()
    options = (*DESCRIBED, "--weights", f"{weights}={key}")
    found = auditor.run(tool, "in.txt", "out.txt", f"--params={weights}", part, options=options)
    (check,) = found.weights
    assert (check.path, check.key) == (str(auditor.folder / weights), key)
    assert (check.opened, check.changes) == (opened, changes)
    assert not found.problems
    assert [each.kind for each in found.notes if each.kind.startswith("weights")] == kinds
    assert Path(weights).read_bytes() == before
    assert Path("out.txt").read_bytes() == b"model\n" + {"all": before, "size": str(len(before)).encode()}.get(
        part, b""
    )


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_weights_that_are_opened_by_another_name(auditor: Auditor, weights: str, link: Callable[..., None]) -> None:
    link(weights, "alias")
    tool = auditor.python("mycc", "open('alias').close(); open('out.txt', 'w').write(open('in.txt').read())")
    found = auditor.run(tool, options=(*DESCRIBED, "--weights", f"{weights}=opened"))
    assert [each.opened for each in found.weights] == [True]
    assert not found.problems


def test_weights_of_an_adapter(auditor: Auditor, weights: str) -> None:
    auditor.python("mycc", WEIGHTS.replace("source, out, path, part = sys.argv[1:]", SPLIT))
    Path("cachec.toml").write_text(
        """[adapters.mycc]
match = ["mycc"]
flags = [
  { names = ["-o"], takes = ["next"], is = "output" },
  { names = ["--params"], takes = ["equals"], is = "weights", key = "opened" },
]
"""
    )
    for part, changes in (("all", True), ("size", False), ("name", False)):
        found = auditor.run("./mycc", "in.txt", "-o", "out.txt", f"--params={weights}", f"--part={part}")
        assert not found.problems
        assert [(each.key, each.opened, each.changes) for each in found.weights] == [
            ("opened", part != "name", changes)
        ]


SPLIT = "source, _, out, path, part = sys.argv[1:]; part = part.partition('=')[2]"


def test_weights_that_can_not_be_replaced_are_not_known(auditor: Auditor, weights: str) -> None:
    tool = auditor.python("mycc", "open('out.txt', 'w').write(open('in.txt').read())")
    (check,) = auditor.run(tool, options=(*DESCRIBED, "--weights", weights)).weights
    assert check.changes is None
    assert "is not named on the command line" in check.words


def test_weights_that_are_none_are_not_known(auditor: Auditor) -> None:
    Path("w.safetensors").write_text("no header")
    tool = auditor.python("mycc", WEIGHTS)
    options = (*DESCRIBED, "--weights", "w.safetensors")
    (check,) = auditor.run(tool, "in.txt", "out.txt", "--p=w.safetensors", "size", options=options).weights
    assert check.changes is None
    assert "no weights like these can be made" in check.words


def test_weights_that_an_unknown_command_reads(auditor: Auditor, weights: str) -> None:
    tool = auditor.python("mycc", WEIGHTS)
    found = auditor.run(tool, "in.txt", "out.txt", f"--params={weights}", "all")
    pairs = set(zip(found.options[::2], found.options[1::2], strict=True))
    assert pairs == {("--input", "in.txt"), ("--weights", weights), ("--output", "out.txt")}


# --- real compilers


def test_a_stripped_model_is_not_read(auditor: Auditor) -> None:
    need("mlir-opt-19")
    Path("m.mlir").write_text(
        "func.func @f() -> tensor<64xf32> {\n"
        f'  %w = arith.constant dense<"0x{bytes(256).hex()}"> : tensor<64xf32>\n  return %w : tensor<64xf32>\n}}\n'
    )
    line = ("mlir-opt-19", "m.mlir", "-o", "out")
    whole, stripped = auditor.run(*line), auditor.run(*line, options=("--strip",))
    assert not whole.problems
    assert not stripped.problems
    assert stripped.deterministic is True
    model = str(auditor.folder / "m.mlir")
    assert model in whole.covered
    assert model not in stripped.covered


def test_clang_reads_what_its_key_covers(auditor: Auditor) -> None:
    need("clang-19")
    Path("h.h").write_text("#define X 1\n")
    Path("a.c").write_text('#include <stdio.h>\n#include "h.h"\nint f(void) { return puts("x") + X; }\n')
    found = auditor.run("clang-19", "-O2", "-I.", "-c", "a.c", "-o", "a.o")
    assert not found.problems
    assert found.covered[str(auditor.folder / "h.h")] == "the trace"
    assert found.deterministic is True


def test_a_wrapper_of_a_compiler_gets_the_options_that_describe_it(auditor: Auditor) -> None:
    need("clang-19")
    tool = auditor.tool("clang", f'. ./settings; exec {shutil.which("clang-19")} $FLAGS "$@"')
    Path("settings").write_text("FLAGS=-O1\n")
    Path("a.c").write_text("int f(void) { return 1; }\n")
    line = (tool, "-c", "a.c", "-o", "a.o")
    found = auditor.run(*line)
    assert found.outcome == "bypass:not-understood"
    assert "cachec audit" in found.detail
    pairs = set(itertools.pairwise(found.options))
    assert ("--input", "settings") in pairs
    assert any(option == "--tool" and "clang" in value for option, value in pairs)
    options = [word for pair in zip(found.options[::2], found.options[1::2], strict=True) for word in pair]
    options = [w for at, w in enumerate(options) if options[at - at % 2] == "--tool" or "settings" in options[at | 1]]
    again = auditor.run(*line, options=options)
    assert again.outcome == "described"
    assert again.stage == "exec:clang"
    assert not again.problems


def test_a_path_in_an_output_is_named_with_its_remedy(auditor: Auditor) -> None:
    need("clang-19")
    Path("a.c").write_text("const char *f(void) { return __FILE__; }\n")
    source = str(auditor.folder / "a.c")
    found = auditor.run("clang-19", "-c", source, "-o", "a.o")
    assert [(each.kind, auditor.shown(each.path)) for each in found.problems] == [("path", "a.o")]
    assert "-ffile-prefix-map=" in found.problems[0].fix
    mapped = f"-ffile-prefix-map={auditor.folder}=."
    assert not auditor.problems("clang-19", "-c", source, "-o", "a.o", mapped)


def test_the_base_folder_in_an_output(auditor: Auditor, monkeypatch: pytest.MonkeyPatch) -> None:
    need("clang-19")
    monkeypatch.setenv("CACHEC_BASE_DIR", str(auditor.folder))
    Path("a.c").write_text("const char *f(void) { return __FILE__; }\n")
    (found,) = auditor.run("clang-19", "-c", str(auditor.folder / "a.c"), "-o", "a.o").problems
    assert found.kind == "path"
    assert "(base_dir)" in found.words


#: Something to compute: for that iree-compile links a library.
MODEL = (
    "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  %y = arith.addf %x, %x : tensor<4xf32>\n"
    "  return %y : tensor<4xf32>\n}\n"
)
LLVM_DIALECT = "llvm.func @f(%x: i32) -> i32 {\n  llvm.return %x : i32\n}\n"
LLVM = "define i32 @f(i32 %x) {\n  ret i32 %x\n}\n"
LOCAL = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")

#: Tool, input, flags; one at least for each adapter.


COMPILERS = [
    ("mlir-opt-19", "m.mlir", MODEL, ("--canonicalize",)),
    ("mlir-translate-19", "m.mlir", LLVM_DIALECT, ("--mlir-to-llvmir",)),
    ("llc-19", "m.ll", LLVM, ("-filetype=obj",)),
    ("opt-19", "m.ll", LLVM, ("-O2", "-S")),
    ("clang-19", "m.ll", LLVM, ("-c",)),
    ("clang-19", "m.c", "int f(int x) { return x; }\n", ("-c",)),
    ("iree-opt", "m.mlir", MODEL, ("--canonicalize",)),
    ("iree-opt", "m.mlir", MODEL, ("--iree-transformation-pipeline", *LOCAL)),
    ("iree-compile", "m.mlir", MODEL, LOCAL),
    ("iree-import-onnx", "m.onnx", "", ()),
]


def test_every_shipped_adapter_is_audited() -> None:
    assert {tool.removesuffix("-19") for tool, *_ in COMPILERS} == {path.stem for path in SHIPPED.glob("*.toml")}


@pytest.mark.parametrize(
    ("tool", "name", "text", "flags"),
    [pytest.param(*row, marks=[pytest.mark.long] if row[0].startswith("iree") else []) for row in COMPILERS],
)
def test_shipped_adapters_cover_their_compilers(
    auditor: Auditor, tool: str, name: str, text: str, flags: tuple[str, ...]
) -> None:
    beside = Path(sys.executable).with_name(tool)  # pip's are in this environment
    if beside.exists():
        tool = str(beside)
    else:
        need(tool)
    if name.endswith(".onnx"):
        write_onnx(name)
    else:
        Path(name).write_text(text)
    found = auditor.run(tool, name, "-o", "out", *flags)
    assert found.outcome == "described"
    assert not found.problems
    assert found.deterministic is True
    assert found.outputs == (str(auditor.folder / "out"),)


def write_onnx(path: str) -> None:
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info
    float32 = onnx.TensorProto.FLOAT
    node = onnx.helper.make_node("Add", ["x", "x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [value("x", float32, [2])], [value("y", float32, [2])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)


# --- wrong use, and what is printed


def test_a_command_that_fails_says_so_itself(auditor: Auditor) -> None:
    tool = auditor.tool("mycc", 'echo "no such model" >&2; exit 3')
    with pytest.raises(CommandEnded, match="exit status 3") as raised:
        auditor.run(tool, options=DESCRIBED)
    assert raised.value.ended.stderr == b"no such model\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ((), "no command"),
        (("--", "no-such-tool"), "not an executable in PATH"),
        (("--strip", "--", "sh", "x"), "--strip: no adapter says how 'sh' takes a model without weights"),
        (("--inptu", "x", "--", "sh"), "did you mean --input"),
        (("--", "cmake", "-E", "echo"), "bypass:build-helper"),
    ],
)
def test_wrong_use(auditor: Auditor, line: tuple[str, ...], words: str) -> None:
    if "cmake" in line:
        need("cmake")
    result = CliRunner().invoke(main, ["audit", *line])
    assert result.exit_code == 2
    assert words in result.output


def test_without_strace(auditor: Auditor, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = auditor.tool("copy", COPY)
    monkeypatch.setenv("PATH", str(auditor.folder))
    with pytest.raises(UsageError, match="strace is not in PATH; install it"):
        auditor.run(tool, "in.txt", "out.txt", options=DESCRIBED)


def test_strace_that_may_not_trace(auditor: Auditor, monkeypatch: pytest.MonkeyPatch) -> None:
    auditor.tool("strace", "echo 'strace: ptrace(PTRACE_TRACEME): Operation not permitted' >&2; exit 1")
    tool = auditor.tool("copy", COPY)
    monkeypatch.setenv("PATH", f"{auditor.folder}:{os.environ['PATH']}")
    with pytest.raises(UsageError, match=r"Operation not permitted; ptrace has to be allowed"):
        auditor.run(tool, "in.txt", "out.txt", options=DESCRIBED)


def test_a_command_that_reads_its_standard_input(auditor: Auditor) -> None:
    need("mlir-opt-19")
    with pytest.raises(UsageError, match="name its input as a file"):
        auditor.run("mlir-opt-19", "-")


def test_what_is_printed(auditor: Auditor) -> None:
    Path("extra.cfg").write_text("x\n")
    tool = auditor.tool("mycc", f"{COPY}\nread -r x < extra.cfg")
    line = ["audit", *DESCRIBED, "--", tool, "in.txt", "out.txt"]
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 1
    assert "problem [read]: " in result.output
    assert "  --input extra.cfg\n" in result.output
    shown = "cachec exec --input in.txt --output out.txt --input extra.cfg -- ./mycc in.txt out.txt"
    assert shown in result.output
    Path("extra.cfg").unlink()
    tool = auditor.tool("mycc", COPY)
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 0
    assert result.output.endswith("no problems\n")


def test_json(auditor: Auditor) -> None:
    tool = auditor.tool("mycc", f"{COPY}\necho x > side.txt")
    result = CliRunner().invoke(main, ["audit", "--json", *DESCRIBED, "--", tool, "in.txt", "out.txt"])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["outcome"] == "described"
    assert [each["kind"] for each in found["problems"]] == ["written"]
    assert found["problems"][0]["fix"] == "--output side.txt"
    assert found["deterministic"] is True
    assert set(found["seconds"]) == {"traced", "again"}


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("w.bin", "/n"),
        ("--p=w.bin", "--p=/n"),
        ("--p=model=w.bin,v.bin", "--p=model=/n,v.bin"),
        ("/c/w.bin", "/n"),
        ("-ow.bin", "-o/n"),
        ("./w.bin", "/n"),
        ("xw.bin", "xw.bin"),
        ("--w.bin", "--w.bin"),
    ],
)
def test_paths_in_arguments(word: str, wanted: str) -> None:
    argv, found = substituted(["tool", word], {"/c/w.bin": "/n"}, "/c")
    assert argv == ["tool", wanted]
    assert found == ({"/c/w.bin"} if word != wanted else set())
