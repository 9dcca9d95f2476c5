"""What ``cachec mlir`` links is read by the command-line tools of LLVM and of IREE, at every alignment."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from cachec.errors import CheckpointError, LinkError, UsageError
from cachec.weights import WeightSet, open_weights
from cachec_mlir import Bytecode, link, strip, topology
from tests.plugins.mlir.cli.test_cli import run
from tests.plugins.mlir.conftest import IREE_OPT

TOOLS = {
    "mlir-opt-16": ["mlir-opt-16"],
    "mlir-opt-19": ["mlir-opt-19"],
    "mlir-opt-22": ["mlir-opt-22"],
    "iree-opt": [str(IREE_OPT)],
    "iree-compile": [str(IREE_OPT.with_name("iree-compile")), "--compile-to=input"],
}
#: Bytecode stays within one LLVM: who writes it, and who reads what it wrote.
READERS = {"mlir-opt-16": "mlir-opt-16", "mlir-opt-19": "mlir-opt-19", "mlir-opt-22": "mlir-opt-22"}
READERS |= {"iree-opt": "iree-opt", "iree-compile": "iree-opt"}

ALIGNMENTS = [1 << power for power in range(13)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def module(alignment: int, elements: int = 5, *, kind: str = "f32", code: str = "f") -> str:
    """Two resources, of which the second begins where nothing would align it."""
    types, blobs = [], []
    for number in (elements, 3):
        types.append(f"tensor<{number}x{kind}>")
        blobs.append(
            alignment.to_bytes(4, "little").hex() + struct.pack(f"<{number}{code}", *range(number)).hex().upper()
        )
    return f"""module @m {{
  func.func @main() -> ({", ".join(types)}) {{
    %0 = arith.constant dense_resource<w1> : {types[0]}
    %1 = arith.constant dense_resource<w2> : {types[1]}
    return %0, %1 : {", ".join(types)}
  }}
}}
{{-# dialect_resources: {{ builtin: {{ w1: "0x{blobs[0]}", w2: "0x{blobs[1]}" }} }} #-}}
"""


def tool(name: str, path: str, *options: str) -> str:
    """What the tool prints of a file."""
    if shutil.which(TOOLS[name][0]) is None:
        if name == "mlir-opt-19" and os.environ.get("CI"):
            pytest.fail("mlir-opt-19 is not installed: apt install mlir-19-tools")
        pytest.skip(f"{name} is not installed")
    done = subprocess.run([*TOOLS[name], path, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    return done.stdout


def written(form: str, reader: str, text: str) -> str:
    """The path of a module in that form, as the LLVM of ``reader`` writes it."""
    Path("m.mlir").write_text(text)
    if form == "text":
        return "m.mlir"
    tool(READERS[reader], "m.mlir", "--emit-bytecode", "-o", "m.mlirbc")
    return "m.mlirbc"


def check_round_trip(reader: str, form: str, alignment: int, elements: int) -> None:
    """Strip, link without options, read: the reader prints what it prints of the module that was stripped."""
    path = written(form, reader, module(alignment, elements))
    run("strip", path, "-o", "small", "--weights", "w.safetensors")
    run("link", "small", "w.safetensors", "-o", "back")
    assert tool(reader, "back") == tool(reader, "m.mlir")
    assert topology("back") == topology(path)
    assert strip("back").ir.rstrip() == Path("small").read_bytes().rstrip()
    run("relink", "small", path, "-o", "relinked")
    run("link", "small", path, "-o", "from-module")
    assert Path("relinked").read_bytes() == Path("from-module").read_bytes() == Path("back").read_bytes()
    # What was linked is taken apart and linked again.
    run("strip", "back", "-o", "again", "--weights", "w.safetensors")
    run("link", "again", "w.safetensors", "-o", "twice")
    assert Path("twice").read_bytes().split() == Path("back").read_bytes().split()


@pytest.mark.parametrize(("reader", "form"), [*zip(TOOLS, cycle(["text", "bytecode"]), strict=False)])
def test_tools_read_what_is_linked(reader: str, form: str) -> None:
    for alignment in (1, 16, 64, 4096):
        check_round_trip(reader, form, alignment, 5)


@pytest.mark.long
@pytest.mark.parametrize("form", ["text", "bytecode"])
@pytest.mark.parametrize("reader", TOOLS)
@pytest.mark.parametrize("elements", [5, 4096])
def test_tools_read_what_is_linked_at_every_alignment_and_size(reader: str, form: str, elements: int) -> None:
    """Of a file that LLVM reads, and of one that it maps."""
    for alignment in ALIGNMENTS:
        check_round_trip(reader, form, alignment, elements)


@pytest.mark.parametrize("reader", ["mlir-opt-19", "mlir-opt-22", "iree-opt"])
def test_no_size_of_a_file_hides_it_from_a_mapping(reader: str) -> None:
    """A file that ends with a page is not mapped. So for each size around a page: all are read."""
    written("bytecode", reader, module(4096))
    small = strip("m.mlirbc").ir
    wanted = set()
    for nbytes in range(4 * 4096 - 8, 4 * 4096 + 4):
        elements = nbytes // 4
        values = {"w1": np.zeros(nbytes, "u1"), "w2": np.zeros(12, "u1")}
        Path("m.mlir").write_text(module(4096, elements))
        if nbytes % 4 == 0:
            tool(READERS[reader], "m.mlir", "--emit-bytecode", "-o", "m.mlirbc")
            small = strip("m.mlirbc").ir
            link(small, WeightSet.from_arrays(values), "back", alignment=4096)
            wanted.add(os.path.getsize("back") % 4096)
            assert "dense_resource<w1>" in tool(reader, "back")
    assert 0 not in wanted


@pytest.mark.parametrize("form", ["text", "bytecode"])
@pytest.mark.parametrize(
    ("kind", "code", "natural"), [("i8", "b", 1), ("f16", "e", 2), ("f32", "f", 4), ("f64", "d", 8)]
)
def test_another_checkpoint_gets_the_alignment_of_its_types(form: str, kind: str, code: str, natural: int) -> None:
    path = written(form, "iree-opt", module(64, kind=kind, code=code))
    run("strip", path, "-o", "small", "--weights", "w.safetensors")
    weights = open_weights("w.safetensors")
    WeightSet.from_weights(dict(weights)).save("tuned.safetensors")
    run("link", "small", "tuned.safetensors", "-o", "tuned")
    Path("m.mlir").write_text(module(natural, kind=kind, code=code))
    assert tool("iree-opt", "tuned") == tool("iree-opt", "m.mlir")


@pytest.mark.parametrize("form", ["text", "bytecode"])
def test_weights_of_no_known_type_are_aligned_for_any(form: str) -> None:
    """Of bytecode without bindings nothing tells a type: 16 suits all types and all readers."""
    small = strip(written(form, "iree-opt", module(64))).ir
    link(small, WeightSet.from_arrays({"w1": np.zeros(20, "u1"), "w2": np.zeros(12, "u1")}), "out")
    found = strip("out").resources
    assert [found[name].alignment for name in ("w1", "w2")] == ([4, 4] if form == "text" else [16, 16])


def test_an_alignment_that_is_asked_for_is_that_of_all() -> None:
    """Of what comes from a checkpoint, from a checkpoint with alignments and from another module."""
    path = written("bytecode", "iree-opt", module(64))
    run("strip", path, "-o", "small", "--weights", "w.safetensors")
    for offered in ("w.safetensors", path):
        run("link", "small", offered, "-o", "out", "--alignment", "256")
        assert {each.alignment for each in strip("out").resources.values()} == {256}
        assert "dense_resource<w1>" in tool("iree-opt", "out")


def test_what_no_tool_can_read_is_refused() -> None:
    path = written("bytecode", "iree-opt", module(8192))
    run("strip", path, "-o", "small", "--weights", "w.safetensors")
    for args in (
        ("link", "small", "w.safetensors"),
        ("link", "small", path),
        ("relink", "small", path),
        ("link", "small", "w.safetensors", "--alignment", "8192"),
    ):
        result = run(*args, "-o", "out", code=2)
        assert "resource 'w1' is aligned to 8192 bytes" in result.stderr
        assert "MLIR's tools read bytecode with at most 4096" in result.stderr
        assert not os.path.exists("out")
    run("link", "small", "w.safetensors", "-o", "out", "--alignment", "4096")
    assert "dense_resource<w1>" in tool("iree-opt", "out")
    # A text says what it wants, and each tool makes room for it.
    run("strip", "m.mlir", "-o", "small", "--weights", "w.safetensors")
    run("link", "small", "w.safetensors", "-o", "out")
    assert tool("iree-opt", "out") == tool("iree-opt", "m.mlir")


@pytest.mark.parametrize("alignment", [-1, 0, 3, 48, 1 << 32, 1 << 63])
@pytest.mark.parametrize("form", ["text", "bytecode"])
def test_an_alignment_that_no_module_can_state_is_refused(form: str, alignment: int) -> None:
    small = strip(written(form, "iree-opt", module(4))).ir
    weights = WeightSet.from_arrays({"w1": np.zeros(5, "f4"), "w2": np.zeros(3, "f4")})
    for asked in (alignment, {"w1": alignment}):
        with pytest.raises(UsageError, match="power of two"):
            link(small, weights, "out", alignment=asked)
    weights.save("w.safetensors", metadata={"cachec.alignments": f'{{"w1": {alignment}}}'})
    Path("small").write_bytes(small)
    result = run("link", "small", "w.safetensors", "-o", "out", code=2)
    assert "w.safetensors: metadata 'cachec.alignments'" in result.stderr
    assert not os.path.exists("out")


@pytest.mark.parametrize("text", ["", "[]", '{"w1": "4"}', '{"w1": 4', '{"w1": 1.5}'])
def test_malformed_alignments_of_a_checkpoint_are_refused(text: str) -> None:
    from cachec_mlir.linking.alignments import saved_alignments

    WeightSet.from_arrays({"w1": np.zeros(5, "f4")}).save("w.safetensors", metadata={"cachec.alignments": text})
    with pytest.raises(CheckpointError, match=r"w\.safetensors: metadata 'cachec\.alignments'"):
        saved_alignments("w.safetensors")


def test_what_a_pipe_does_not_carry_is_said() -> None:
    path = written("bytecode", "iree-opt", module(64))
    run("strip", path, "-o", "small", "--weights", "w.safetensors")
    line = f"{sys.executable} -m cachec mlir link small w.safetensors -o -"
    piped = subprocess.run(f"{line} | cat > piped", shell=True, capture_output=True, text=True)
    assert "MLIR's tools read it from a file only" in piped.stderr
    assert "dense_resource<w1>" in tool("iree-opt", "piped")
    for quiet in (f"{line} > out", f"{line} --alignment 16 | cat > out"):
        done = subprocess.run(quiet, shell=True, capture_output=True, text=True)
        assert "read it from a file only" not in done.stderr
        assert "dense_resource<w1>" in tool("iree-opt", "out")


def test_a_module_keeps_the_alignment_of_what_it_has_bytes_of() -> None:
    """Linked in two steps: what is there already stays, and the file is one that is read."""
    small = Path(written("bytecode", "iree-opt", module(4096))).read_bytes()
    assert {each.alignment for each in Bytecode(small).resources.values()} == {4096}
    link(small, WeightSet.from_arrays({}), "out")
    assert tool("iree-opt", "out") == tool("iree-opt", "m.mlir")
    large = Path(written("bytecode", "iree-opt", module(8192))).read_bytes()
    with pytest.raises(LinkError, match="aligned to 8192 bytes"):
        link(large, WeightSet.from_arrays({}), "other")
