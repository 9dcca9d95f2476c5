"""cachec for ExecuTorch: programs of torch lowered without the bytes of their weights, which go to a ``.ptd``.

Importing this package imports neither executorch nor torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_executorch.plugin import ExecutorchPlugin

__all__ = ["ExecutorchPlugin", "compile", "plugin", "write"]

#: The object behind the entry point ``executorch`` of the group ``cachec.plugins``.
plugin = ExecutorchPlugin()


def compile(program: Program, *, config: Mapping[str, Any] = MappingProxyType({})) -> File:
    """Lower a program of ``cachec_torch.to_exported`` to a ``File`` of kind ``executorch:program``, a ``.pte``.

    The file has the program's constants, but only the names of weights. ``cachec.link`` runs it with ExecuTorch's
    Python runtime; ``write`` makes the files for a device. config: fields of ``ExecutorchBackendConfig`` that are
    numbers or booleans, such as ``segment_alignment``. The program uses ExecuTorch's own kernels only.

    The file is in a temporary folder, which is removed with the returned object. Raises UsageError for an unknown
    field, a value that is not a number, or a field about the place of weights. Raises PluginError if ExecuTorch reads
    the value of a weight, and for programs that write to inputs or weights, or take or return sizes. Other errors of
    ExecuTorch pass through.
    """
    from cachec_executorch.lowering import lower_program

    return lower_program(program, config)


def write(artifact: File, weights: WeightSet, folder: str | os.PathLike[str], *, name: str = "model") -> None:
    """Write ``<name>.pte`` and ``<name>.ptd``, the program and these weights, for ExecuTorch on another machine.

    Imports neither executorch nor torch, and replaces existing files. Raises LinkError if ``artifact`` is not from
    ``compile``, or the weights do not fit it.
    """
    from cachec_executorch.ptd_writer import write_files

    write_files(artifact, weights, folder, name)
