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

    It holds the program's constants, and of weights only names: ``cachec.link`` runs it by ExecuTorch's Python runtime,
    ``write`` makes the files for a device. config: fields of ``ExecutorchBackendConfig`` that are numbers or booleans,
    such as ``segment_alignment``. For ExecuTorch's own kernels; nothing goes to another backend.

    The file is in a temporary folder that goes when the returned object does. Raises UsageError for a field that there
    is not, is no number, or says where weights are; PluginError where ExecuTorch looks at the value of a weight, and
    for programs that write to inputs or weights, or take or return sizes; what ExecuTorch raises where it can't lower
    passes through.
    """
    from cachec_executorch.lowering import lowered

    return lowered(program, config)


def write(artifact: File, weights: WeightSet, folder: str | os.PathLike[str], *, name: str = "model") -> None:
    """Write ``<name>.pte`` and ``<name>.ptd``, the program and these weights, for ExecuTorch on another machine.

    Imports neither executorch nor torch. Files that are there are replaced. Raises LinkError where ``artifact`` is
    nothing that ``compile`` made, or the weights do not fit it.
    """
    from cachec_executorch.writing import written

    written(artifact, weights, folder, name)
