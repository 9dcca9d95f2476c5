"""Programs of ``cachec_onnxruntime.strip`` as modules of Relax. Imports onnx and tvm."""

from __future__ import annotations

import warnings

import onnx
import tvm
from tvm.relax.frontend.onnx import from_onnx

from cachec.programs.program import Program


def imported(program: Program) -> tvm.IRModule:
    """The module, whose ``main`` takes the weights last, sorted by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of onnx's checker: shapes that are not stated
        return from_onnx(onnx.load_model_from_string(program.ir))
