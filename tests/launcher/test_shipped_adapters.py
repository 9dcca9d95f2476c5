"""Every shipped adapter on its real tool: a hit gives what the tool gives, with flags that dump or print things too."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.launcher.conftest import Launcher, need, wait_for_clock, write

_MLIR = """func.func @f(%a: i32) -> i32 {
  %c = arith.constant 1 : i32
  %0 = arith.addi %a, %c : i32
  return %0 : i32
}
"""
_LLVM_DIALECT = "llvm.func @f(%a: i32) -> i32 {\n  llvm.return %a : i32\n}\n"
_LL = "define i32 @f(i32 %a) {\n  %p = alloca i32\n  store i32 %a, ptr %p\n  %r = load i32, ptr %p\n  ret i32 %r\n}\n"
_STABLEHLO = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""
_CPU = [
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=vmvx",
    "--iree-input-type=stablehlo",
]


def _tool(name: str) -> str:
    """The newest of ``name-19`` and ``name``; pip's scripts are beside this Python."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    if os.path.exists(beside):
        return beside
    return next((found for found in (f"{name}-19", name) if shutil.which(found)), name)


def _files() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def _check(launcher: Launcher, line: list[str], output: str | None, *, differs: list[str], beside: list[str]) -> None:
    """Twice the same is one compile; with ``differs`` it is another; with ``beside`` it writes something else, which
    a hit gives too."""
    wait_for_clock()
    before = set(_files())
    first = launcher.run(*line)
    assert first.code == 0, first.stderr
    assert launcher.last().stored
    made = Path(output).read_bytes() if output is not None else first.stdout.encode()
    assert made
    if output is not None:
        os.unlink(output)
    second = launcher.run(*line)
    assert launcher.last().hit
    assert second == first
    if output is not None:
        assert Path(output).read_bytes() == made
        os.unlink(output)
    assert launcher.direct(*line) == first
    if output is not None:
        assert Path(output).read_bytes() == made
    assert launcher.run(*line, *differs).code == 0
    assert launcher.last().reason.value == "miss:option-changed"
    ran = launcher.run(*line, *beside)
    assert launcher.last().stored
    files = _files()
    for path in set(Path().iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert launcher.run(*line, *beside) == ran
    assert launcher.last().hit
    assert _files() == files
    assert ran.stderr or set(files) - {Path(output or "")} > before


@need(_tool("mlir-opt"))
class TestMlirOpt:
    def test_to_a_file(self, launcher: Launcher) -> None:
        write("a.mlir", _MLIR)
        line = [_tool("mlir-opt"), "a.mlir", "--convert-arith-to-llvm", "-o", "b.mlir"]
        _check(launcher, line, "b.mlir", differs=["--canonicalize"], beside=["--mlir-print-ir-after-all"])

    def test_to_stdout(self, launcher: Launcher) -> None:
        write("a.mlir", _MLIR)
        line = [_tool("mlir-opt"), "a.mlir", "--pass-pipeline=builtin.module(canonicalize)"]
        _check(launcher, line, None, differs=["--mlir-print-debuginfo"], beside=["--mlir-timing"])

    def test_a_failing_pass(self, launcher: Launcher) -> None:
        write("a.mlir", "func.func @f(")
        ran = launcher.run(_tool("mlir-opt"), "a.mlir", "-o", "b.mlir")
        assert ran.code == 1
        assert "a.mlir:1" in ran.stderr
        assert launcher.last().reason.value == "error:stage-raised"


@need(_tool("mlir-translate"))
def test_mlir_translate(launcher: Launcher) -> None:
    write("a.mlir", _LLVM_DIALECT)
    line = [_tool("mlir-translate"), "--mlir-to-llvmir", "a.mlir", "-o", "a.ll"]
    _check(launcher, line, "a.ll", differs=["--split-input-file"], beside=["--mlir-timing"])


@need(_tool("opt"))
def test_opt(launcher: Launcher) -> None:
    write("a.ll", _LL)
    line = [_tool("opt"), "-passes=mem2reg", "-S", "a.ll", "-o", "b.ll"]
    _check(launcher, line, "b.ll", differs=["-disable-verify"], beside=["-time-passes"])
    assert "alloca" not in Path("b.ll").read_text()


@need(_tool("llc"))
def test_llc(launcher: Launcher) -> None:
    write("a.ll", _LL)
    line = [_tool("llc"), "a.ll", "-o", "a.o", "-filetype=obj"]
    _check(launcher, line, "a.o", differs=["-O0"], beside=["-time-passes"])


@need(_tool("clang"))
def test_clang_of_llvm_ir(launcher: Launcher) -> None:
    write("a.ll", _LL)
    line = [_tool("clang"), "-O1", "-c", "-x", "ir", "a.ll", "-o", "a.o"]
    _check(launcher, line, "a.o", differs=["-fPIC"], beside=["-v"])


@need(_tool("iree-compile"))
class TestIree:
    def test_iree_compile(self, launcher: Launcher) -> None:
        write("a.mlir", _STABLEHLO)
        line = [_tool("iree-compile"), "a.mlir", "-o", "a.vmfb", *_CPU]
        beside = ["--iree-hal-dump-executable-files-to=dumped"]
        _check(launcher, line, "a.vmfb", differs=["--iree-opt-level=O1"], beside=beside)

    def test_iree_compile_counts_with_its_library(self, launcher: Launcher) -> None:
        from cachec.launcher import direct

        write("a.mlir", _STABLEHLO)
        line = [_tool("iree-compile"), "a.mlir", "-o", "a.vmfb", *_CPU]
        assert launcher.run(*line).code == 0
        (memo,) = (launcher.store / "direct").glob("*/*")
        fields = memo.read_bytes()[len(direct.MAGIC) + 40 :].split(b"\0")
        assert any(field.endswith(b"libIREECompiler.so") for field in fields)

    def test_an_iree_compile_of_somebody_else_is_another_program(self, launcher: Launcher, tmp_path: Path) -> None:
        tool = tmp_path / "bin" / "iree-compile"
        tool.write_text('#!/bin/sh\ncat "$1" "$2" > "$4"\n')
        tool.chmod(0o755)
        write("a.mlir", _STABLEHLO)
        for text in ("one", "two"):  # the adapter knows of no such input
            write("b.mlir", text)
            wait_for_clock()
            for kind in ("miss", "hit"):
                launcher.run(tool, "a.mlir", "b.mlir", "-o", "a.vmfb")
                assert launcher.last().reason.kind == kind, launcher.last()
                assert Path("a.vmfb").read_text() == _STABLEHLO + text

    def test_iree_opt(self, launcher: Launcher) -> None:
        write("a.mlir", _MLIR)
        line = [_tool("iree-opt"), "a.mlir", "-o", "b.mlir"]
        _check(launcher, line, "b.mlir", differs=["--canonicalize"], beside=["--mlir-timing"])

    @pytest.mark.long
    def test_iree_import_onnx(self, launcher: Launcher) -> None:
        onnx = pytest.importorskip("onnx")
        info = onnx.helper.make_tensor_value_info
        kind = onnx.TensorProto.FLOAT
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("Add", ["x", "x"], ["y"])], "g", [info("x", kind, [2])], [info("y", kind, [2])]
        )
        onnx.save(
            onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), "m.onnx"
        )
        line = [_tool("iree-import-onnx"), "m.onnx", "-o", "m.mlir"]
        first = launcher.run(*line)
        assert first.code == 0, first.stderr
        made = Path("m.mlir").read_bytes()
        os.unlink("m.mlir")
        assert launcher.run(*line) == first
        assert launcher.last().hit
        assert Path("m.mlir").read_bytes() == made
        launcher.run(*line, "--opset-version", "18")
        assert launcher.last().reason.value == "miss:option-changed"
        weights = onnx.helper.make_tensor("w", kind, [2], b"\0" * 8, raw=True)
        graph.initializer.append(weights)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        onnx.save_model(model, "e.onnx", save_as_external_data=True, size_threshold=0, location="e.data")
        wait_for_clock()
        for expected in ("miss:new-input", "hit"):
            launcher.run(_tool("iree-import-onnx"), "e.onnx", "-o", "e.mlir")
            assert launcher.last().reason.value == expected
        write("e.data", b"\1" * 8)
        launcher.run(_tool("iree-import-onnx"), "e.onnx", "-o", "e.mlir")
        assert not launcher.last().hit
