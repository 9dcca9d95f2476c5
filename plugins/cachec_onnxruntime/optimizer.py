"""Optimisation of programs by ONNX Runtime. Imports onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import onnxruntime as ort

from cachec.commands.run import host_processor
from cachec.errors import PluginError, UsageError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec_mlir.compilers import file_in_new_folder
from cachec_onnxruntime.kinds import CONFIGURATION, FORMAT, KIND, PROVIDERS, VERSION
from cachec_onnxruntime.onnx_models import inputs_to_initializers

#: The prefix of a session's entries about the place of an optimised model.
_WRITING = "session.optimized_model_"

#: Levels of this release by name: ``layout`` is new in 1.22.
LEVELS = {
    name: getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{name.upper()}")
    for name in ("basic", "extended", "layout", "all")
    if hasattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{name.upper()}")
}


def optimize_program(program: Program, level: str, providers: Sequence[str], configuration: Mapping[str, str]) -> File:
    """See ``cachec_onnxruntime.optimize``."""
    if program.format != FORMAT:
        raise PluginError(f"optimize takes programs of cachec_onnxruntime.strip; this one is {program.format!r}")
    if level not in LEVELS:
        raise UsageError(f"level expected one of {', '.join(LEVELS)}, found {level!r}")
    if isinstance(providers, str) or not all(isinstance(each, str) for each in providers) or not providers:
        raise UsageError(f"providers expected names such as ['CPUExecutionProvider'], found {providers!r}")
    absent = sorted(set(providers) - set(ort.get_available_providers()))
    if absent:
        raise UsageError(f"this onnxruntime has no {absent[0]}; it has {', '.join(ort.get_available_providers())}")
    for key in configuration:
        if key.startswith(_WRITING):
            raise UsageError(f"{key!r} can't be set: cachec chooses the place of the optimised model")
    # The processor decides which kernels there are, and the layout of their data.
    host_processor()
    file = file_in_new_folder("model.onnx", kind=KIND, manifest=program.manifest)
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(file.path)
    for key, value in configuration.items():
        options.add_session_config_entry(key, value)
    options.log_severity_level = 3  # no warning that the model is for this machine: the key has the processor
    ort.InferenceSession(program.ir, options, providers=list(providers))
    notes = {
        PROVIDERS: json.dumps(list(providers)),
        CONFIGURATION: json.dumps(dict(configuration)),
        VERSION: ort.__version__,
    }
    model = memoryview(file.read_bytes())
    file.path.write_bytes(inputs_to_initializers(model, frozenset(program.manifest.weights), notes))
    return file
