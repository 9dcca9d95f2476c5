"""The self-test of the plugin, which ``cachec.programs.self_tests`` runs with new releases."""

from __future__ import annotations

import numpy as np

import cachec_iree
from cachec.cache import Cache
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.programs.self_test_checks import check_linked
from cachec.weights import WeightSet

_TEXT = """
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<2x3xf32>
func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %w = util.global.load @w : tensor<2x3xf32>
  %y = arith.mulf %x, %w : tensor<2x3xf32>
  return %y : tensor<2x3xf32>
}
"""


def self_test() -> None:
    """Compile ``y = x * w``. Raises where that does not work."""
    cache = Cache()

    @cache.stage(tools=["iree-base-compiler"], isolated=False, version="1")
    def build(program: Program) -> File:
        return cachec_iree.compile(program)

    weights = {"w": np.arange(6, dtype="f4").reshape(2, 3)}
    program = Program(_TEXT, format="mlir:text", manifest=WeightSet.from_arrays(weights).manifest)
    inputs = (np.array([[1, 2, 3], [5, 7, 11]], "f4"),)
    check_linked(build, program, weights, inputs, lambda arrays, x: x * arrays["w"])
