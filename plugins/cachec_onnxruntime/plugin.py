"""The plugin object: what cachec asks of ONNX Runtime. Nothing here imports it before something is linked."""

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
from cachec_onnxruntime.names import KIND

#: Variables that begin so are ONNX Runtime's; these say nothing of results.
_VARIABLES, _IRRELEVANT = "ORT_", frozenset({"ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS"})


class OnnxRuntimePlugin(FilePlugin):
    """Programs of ONNX models, and the models that ONNX Runtime optimised."""

    name = "onnxruntime"
    distributions = ("onnxruntime",)
    tried_releases = MappingProxyType({"onnxruntime": ">=1.20,<1.33"})
    self_test = "cachec_onnxruntime.self_test:self_test"

    def ambient(self) -> Mapping[str, str]:
        """The variables that ONNX Runtime reads; its options are a session's, and no state of the process."""
        there = sorted(name for name in os.environ if name.startswith(_VARIABLES) and name not in _IRRELEVANT)
        return {name: os.environ[name] for name in there}

    def link(self, artifact: File | Program, weights: WeightSet) -> Any:
        """A ``cachec_onnxruntime.sessions.LinkedSession`` over the mapped weights. Imports onnxruntime."""
        if not isinstance(artifact, File) or artifact.kind != KIND:
            raise PluginError(f"{artifact!r} is not of kind {KIND!r}; cachec_onnxruntime.optimize makes such files")
        from cachec_onnxruntime.sessions import linked

        return linked(artifact, weights)

    def title(self, ir: bytes) -> str:
        """The name of the graph."""
        from cachec_onnxruntime.models import title

        return title(memoryview(ir))

    def difference(self, before: bytes, after: bytes) -> str:
        """The first node or the constants that differ."""
        from cachec_onnxruntime.explaining import difference

        return difference(before, after)

    def suffix(self, format: str) -> str:
        """``.onnx``."""
        return ".onnx"
