"""The plugin object for ONNX Runtime, which it imports only to link a program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cachec.errors import PluginError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_mlir.plugin import FilePlugin
from cachec_onnxruntime.kinds import KIND

#: The prefix of ONNX Runtime's variables, and those that do not change results.
_VARIABLES, _IRRELEVANT = "ORT_", frozenset({"ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS"})


class OnnxRuntimePlugin(FilePlugin):
    """Programs of ONNX models, and the models that ONNX Runtime optimised."""

    name = "onnxruntime"
    distributions = ("onnxruntime",)
    tried_releases = MappingProxyType({"onnxruntime": ">=1.20,<1.33"})
    self_test = "cachec_onnxruntime.self_test:self_test"

    def ambient(self) -> Mapping[str, str]:
        """Return the variables that ONNX Runtime reads. Its options belong to a session, not to the process."""
        there = sorted(name for name in os.environ if name.startswith(_VARIABLES) and name not in _IRRELEVANT)
        return {name: os.environ[name] for name in there}

    def link(self, artifact: File | Program, weights: WeightSet) -> Any:
        """Return a ``cachec_onnxruntime.sessions.LinkedSession`` with mapped weights. Imports onnxruntime."""
        if not isinstance(artifact, File) or artifact.kind != KIND:
            raise PluginError(f"{artifact!r} is not of kind {KIND!r}; cachec_onnxruntime.optimize makes such files")
        from cachec_onnxruntime.sessions import link

        return link(artifact, weights)

    def title(self, ir: bytes) -> str:
        """Return the name of the graph."""
        from cachec_onnxruntime.onnx_models import title

        return title(memoryview(ir))

    def difference(self, before: bytes, after: bytes) -> str:
        """Describe the first node or the constants that differ."""
        from cachec_onnxruntime.model_diff import difference

        return difference(before, after)

    def suffix(self, format: str) -> str:
        """``.onnx``."""
        return ".onnx"
