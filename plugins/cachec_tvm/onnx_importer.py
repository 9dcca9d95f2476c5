"""Import of programs of ``cachec_onnxruntime.strip`` as Relax modules. Imports onnx and tvm."""

from __future__ import annotations

import warnings

import onnx
import tvm
from tvm.relax.frontend.onnx import from_onnx

from cachec.programs.program import Program


def import_program(program: Program) -> tvm.IRModule:
    """Return the module, with the weights as the last parameters of ``main``, sorted by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # onnx's checker warns about missing shapes
        return from_onnx(onnx.load_model_from_string(program.ir))
