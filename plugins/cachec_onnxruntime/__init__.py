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
    """Return the ``Program`` of a model without the bytes of its weights, which are initialisers of the main graph.

    model: a file, or a ModelProto with its values. weights: the weights by names of initialisers; None for all
    initialisers, with the values of the model. A weight that is also in ``constants`` replaces the model's value.

    constants: names or globs of initialisers that stay in the program by value. The default is those that optimisations
    read: scalars, integers and booleans with one dimension, and the scales of Resize. Initialisers of a type that no
    weight can have always stay.

    Raises PluginError for a file that is not an ONNX model, for a weight of another shape or type, and for values that
    are in a missing file; UnknownWeight for a name that no initialiser has.
    """
    from cachec_onnxruntime.programs import strip_model

    return strip_model(model, weights, constants)


def optimize(
    program: Program,
    *,
    level: str = "all",
    providers: Sequence[str] = ("CPUExecutionProvider",),
    configuration: Mapping[str, str] = MappingProxyType({}),
) -> File:
    """Optimise a program of ``strip`` to a ``File`` of kind ``onnxruntime:optimized``, for ``cachec.link``.

    ONNX Runtime gets the weights as inputs of the graph, so it can't read their values. level: ``basic``, ``extended``,
    ``layout`` or ``all``, as in ``GraphOptimizationLevel``. providers: the execution providers, in order.
    configuration: entries of the session, such as ``session.disable_prepacking``. ``cachec.link`` makes a session with
    the same providers and entries.

    The file is in a temporary folder, which is removed with the returned object. The running stage records this
    machine's processor. Raises UsageError for an unknown level or provider, and for an entry with the path of an
    optimised model. ONNX Runtime's errors for a model that it can't load pass through.
    """
    from cachec_onnxruntime.optimizer import optimize_program

    return optimize_program(program, level, providers, configuration)
