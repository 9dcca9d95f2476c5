"""cachec for TVM: programs of torch, ONNX models and modules of Relax with weights by name, compiled in one stage,
linked to TVM's virtual machine.

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

    program: of ``cachec_torch.to_exported``, to a ``File`` of kind ``tvm:exported``, whose link is called as the module
    was; or of ``cachec_onnxruntime.strip`` or ``strip``, to one of kind ``tvm:library``, whose link takes an array for
    each input.

    TVM gets the weights as parameters of ``main``: it can read none. target: as TVM writes it, of kind ``llvm``. Which
    C++ compiler linked the library, and this machine's processor, are recorded in the running stage.

    The file is in a temporary folder that goes when the returned object does. Raises PluginError for a program of
    another format, where TVM does not take all weights as they are, and for programs of torch that write to inputs,
    weights or buffers, or take or return sizes; UsageError for a target that is none for the CPU; what TVM raises for
    an operation that it does not know passes through.
    """
    from cachec_tvm.compiling import compiled

    return compiled(program, target)


def strip(module: tvm.IRModule, weights: WeightSet, *, names: Mapping[str, str] = MappingProxyType({})) -> Program:
    """The ``Program`` of a module of Relax whose ``main`` takes weights as parameters, of format ``tvm:relax``.

    weights: only its specs are looked at. names: parameter of ``main`` -> weight, where these are not the same; other
    parameters are inputs, in their order. The program is TVMScript, and counts by that text, in which variables of
    Relax have numbers for names: equal for other names of locals and parameters, another one for each other edit.
    TVM's ``structural_hash`` is no part of it: 64 bits that are hardly mixed, and that no two releases promise alike.

    Raises PluginError where the weights do not fit ``main``, for a constant that has dimensions, which TVM can't write
    as text (make it a parameter), and for a module that TVM does not read back as it was.
    """
    from cachec_tvm.relaxed import stripped

    return stripped(module, weights, names)
