"""cachec for TVM: ONNX models with weights by name, compiled in one stage, linked to TVM's virtual machine.

Importing this package does not import tvm.
"""

from __future__ import annotations

from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec_tvm.plugin import TvmPlugin

__all__ = ["TvmPlugin", "compile", "plugin"]

#: The object behind the entry point ``tvm`` of the group ``cachec.plugins``.
plugin = TvmPlugin()


def compile(program: Program, *, target: str = "llvm") -> File:
    """Compile a program of ``cachec_onnxruntime.strip`` for the CPU to a ``File`` of kind ``tvm:library``.

    TVM gets the weights as parameters of ``main``: it can read none. target: as TVM writes it, of kind ``llvm``. Which
    C++ compiler linked the library, and this machine's processor, are recorded in the running stage.

    The file is in a temporary folder that goes when the returned object does. Raises PluginError for a program of
    another format, and where TVM does not take all weights as they are; UsageError for a target that is none for the
    CPU; what TVM raises for an operation that it does not know passes through.
    """
    from cachec_tvm.compiling import compiled

    return compiled(program, target)
