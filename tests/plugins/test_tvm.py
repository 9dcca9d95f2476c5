"""cachec_tvm: ONNX models compiled without the bytes of their weights, run by TVM's virtual machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachec
import cachec_onnxruntime as co
import cachec_tvm
from cachec.testing.conformance import PluginConformance
from tests.needs import Later, need
from tests.plugins.onnx_models import X, arrays, expected, model, node, perceptron

pytestmark = pytest.mark.long

tvm = Later("tvm")
CONSTANTS = ("factor", "shape")


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    need("g++")


class TestConformance(PluginConformance):
    plugin = cachec_tvm.plugin
    compilers = ("tvm", "tvm_ffi", "onnx", "cachec_tvm.compiler")
    runtimes = ("tvm", "tvm_ffi")

    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        @cache.stage(tools=["onnx"])
        def lower(weights: cachec.WeightSet, factor: float) -> cachec.Program:
            return co.strip(perceptron(arrays(0), factor), weights, constants=CONSTANTS)

        @cache.stage(tools=["apache-tvm", "apache-tvm-ffi", "onnx"])
        def build(program: cachec.Program) -> cachec.File:
            return cachec_tvm.compile(program)

        return lower, build

    def weight_sets(self, folder: Path) -> tuple[cachec.WeightSet, cachec.WeightSet]:
        return cachec.WeightSet.from_arrays(arrays(0)), cachec.WeightSet.from_arrays(arrays(1))

    def inputs(self) -> Sequence[Any]:
        return (X,)


@pytest.fixture(scope="module")
def compiled() -> cachec.File:
    return cachec_tvm.compile(co.strip(perceptron(arrays(0)), constants=CONSTANTS))


def test_the_numbers_are_those_of_the_weights(compiled: cachec.File) -> None:
    for seed in (0, 1):
        weights = cachec.WeightSet.from_arrays(arrays(seed))
        np.testing.assert_allclose(cachec.link(compiled, weights)(X), expected(arrays(seed)), rtol=1e-4)


def test_weights_of_one_shape_are_told_apart_by_their_names() -> None:
    draw = np.random.default_rng(2)
    values = {name: draw.normal(size=(8, 8)).astype("f4") for name in ("z", "a", "m")}
    made = model([node("MatMul", "x z", "b"), node("Sub", "b b", "c"), node("MatMul", "x a", "d"),
                  node("MatMul", "d m", "e"), node("Add", "c e", "y")], values)  # fmt: skip
    linked = cachec.link(cachec_tvm.compile(co.strip(made)), cachec.WeightSet.from_arrays(values))
    np.testing.assert_allclose(linked(X), X @ values["a"] @ values["m"], rtol=1e-3, atol=1e-4)


def test_no_name_of_a_folder_is_in_a_library(compiled: cachec.File) -> None:
    assert str(compiled.path.parent).encode() not in compiled.read_bytes()


def test_what_is_set_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tvm.__version__
    before = dict(cachec_tvm.plugin.ambient())
    with tvm.transform.PassContext(opt_level=3, config={"tirx.disable_vectorize": True}):
        inside = cachec_tvm.plugin.ambient()
    assert inside.keys() - before.keys() == {"opt_level", "config"}
    with tvm.target.Target("llvm"):
        assert "target" in cachec_tvm.plugin.ambient()
    monkeypatch.setenv("CXX", "clang++")
    assert cachec_tvm.plugin.ambient() == before | {"CXX": "clang++"}


def test_what_is_refused(compiled: cachec.File, tmp_path: Path) -> None:
    program = co.strip(perceptron(arrays(0)), constants=CONSTANTS)
    for target in ("cuda", "no such"):
        with pytest.raises(cachec.UsageError, match="target"):
            cachec_tvm.compile(program, target=target)
    with pytest.raises(cachec.PluginError, match="takes programs of"):
        cachec_tvm.compile(cachec.Program("x", format="mlir:text", manifest=program.manifest))
    weights = cachec.WeightSet.from_arrays(arrays(0))
    with pytest.raises(cachec.PluginError, match="makes such files"):
        cachec_tvm.plugin.link(program, weights)
    for data in (b"", b"\x7fELF", compiled.read_bytes()[:200]):
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(cachec.LinkError, match="can't be linked"):
            cachec_tvm.plugin.link(cachec.File(tmp_path / "x", kind=compiled.kind), weights)
