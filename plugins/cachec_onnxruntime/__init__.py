"""cachec for ONNX Runtime: models with weights by name, optimised without their bytes, linked to sessions.

Importing this package imports neither onnxruntime nor onnx.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_onnxruntime.plugin import OnnxRuntimePlugin

if TYPE_CHECKING:
    import onnx

__all__ = ["OnnxRuntimePlugin", "optimize", "plugin", "strip"]

#: The object behind the entry point ``onnxruntime`` of the group ``cachec.plugins``.
plugin = OnnxRuntimePlugin()


def strip(
    model: str | os.PathLike[str] | onnx.ModelProto,
    weights: WeightSet | None = None,
    *,
    constants: Iterable[str] | str | None = None,
) -> Program:
    """The ``Program`` of a model without the bytes of its weights, which are initialisers of its main graph.

    model: a file, or a ModelProto whose values are in it. weights: which initialisers are outside, by their names, and
    what the others among them hold; all others have the values that are in the model. None for all that the model has.

    constants: names or globs of initialisers that stay in the program, by value. Left out, they are what optimisations
    look at: those without dimensions, integers and booleans with one, and the scales of Resize. Those of a type that no
    weight can have stay in any case.

    Raises PluginError for what is no ONNX model, where ``weights`` has another shape or type, and where bytes that have
    to be in the program are in a file that is not there; UnknownWeight for a name that is no initialiser's.
    """
    from cachec_onnxruntime.programs import stripped

    return stripped(model, weights, constants)


def optimize(
    program: Program,
    *,
    level: str = "all",
    providers: Sequence[str] = ("CPUExecutionProvider",),
    configuration: Mapping[str, str] = MappingProxyType({}),
) -> File:
    """Optimise a program of ``strip`` to a ``File`` of kind ``onnxruntime:optimized``, for ``cachec.link``.

    ONNX Runtime gets the weights as inputs of the graph: it can read none. level: ``basic``, ``extended``, ``layout``
    or ``all``, as ``GraphOptimizationLevel`` has them. providers: for whom, in their order. configuration: entries of
    the session's, such as ``session.disable_prepacking``. Sessions are linked with the same providers and entries.

    The file is in a temporary folder that goes when the returned object does. This machine's processor is recorded in
    the running stage. Raises UsageError for a level or a provider that there is not, and for an
    entry that says where an optimised model is written; what ONNX Runtime raises for a
    model that it can't load passes through.
    """
    from cachec_onnxruntime.optimizing import optimized

    return optimized(program, level, providers, configuration)
