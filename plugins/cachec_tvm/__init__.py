"""cachec for TVM: programs with weights by name (torch, ONNX, Relax), compiled to libraries for TVM's virtual machine.

Importing this package does not import tvm.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_tvm.plugin import TvmPlugin

if TYPE_CHECKING:
    import tvm

__all__ = ["TvmPlugin", "compile", "plugin", "strip"]

#: The object behind the entry point ``tvm`` of the group ``cachec.plugins``.
plugin = TvmPlugin()


def compile(program: Program, *, target: str = "llvm") -> File:
    """Compile a program for the CPU.

    program: of ``cachec_torch.to_exported``, for a ``File`` of kind ``tvm:exported``, which is linked to a function
    like the module; or of ``cachec_onnxruntime.strip`` or ``strip``, for one of kind ``tvm:library``, which is linked
    to a function of one array for each input.

    TVM gets the weights as parameters of ``main``, so it can't read their values. target: in TVM's notation, of kind
    ``llvm``. The running stage records the C++ compiler that links, and this machine's processor.

    The file is in a temporary folder, which is removed with the returned object. Raises PluginError for a program of
    another format, if TVM changes the weights' types or order, and for programs of torch that write to inputs, weights
    or buffers, or take or return sizes; UsageError for a target that is not a CPU. TVM's errors for an unknown
    operation pass through.
    """
    from cachec_tvm.compiler import compile_program

    return compile_program(program, target)


def strip(module: tvm.IRModule, weights: WeightSet, *, names: Mapping[str, str] = MappingProxyType({})) -> Program:
    """Return the ``Program`` of a Relax module with weights as parameters of ``main``, of format ``tvm:relax``.

    weights: only the specs are read. names: parameter of ``main`` -> weight, if their names differ; all other
    parameters are inputs, in order. The program is TVMScript with numbers for the names of Relax variables, and counts
    by this text: new names of locals and parameters do not change it, but all other edits do.

    Raises PluginError for weights that do not fit ``main``, for a constant with dimensions, which TVM can't write as
    text (make it a parameter), and for a module that TVM does not read back unchanged.
    """
    from cachec_tvm.relax_programs import strip_module

    return strip_module(module, weights, names)
