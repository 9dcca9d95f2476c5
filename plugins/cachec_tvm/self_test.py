"""The self-test of the plugin, which ``cachec.programs.self_tests`` runs with new releases. Imports TVM."""

from __future__ import annotations

import numpy as np
from tvm.script import from_source

import cachec_tvm
from cachec.cache import Cache
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.programs.self_test_checks import check_linked
from cachec.weights import WeightSet

_TEXT = """
# from tvm.script import ir as I
# from tvm.script import relax as R

@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2, 2), dtype="float32"), w: R.Tensor((2, 3), dtype="float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y
"""


def self_test() -> None:
    """Compile ``y = x @ w``. Raises where that does not work."""
    cache = Cache()

    @cache.stage(tools=["apache-tvm", "apache-tvm-ffi"], isolated=False, version="1")
    def build(program: Program) -> File:
        return cachec_tvm.compile(program)

    weights = {"w": np.arange(6, dtype="f4").reshape(2, 3)}
    program = cachec_tvm.strip(from_source(_TEXT), WeightSet.from_arrays(weights))
    inputs = (np.array([[1, 2], [3, 5]], "f4"),)
    check_linked(build, program, weights, inputs, lambda arrays, x: x @ arrays["w"])
