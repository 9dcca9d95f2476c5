"""The plugin object: what cachec asks of ExecuTorch. Nothing here imports it before something is linked."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from cachec.errors import PluginError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_executorch.files import KIND
from cachec_mlir.plugin import FilePlugin


class ExecutorchPlugin(FilePlugin):
    """Programs that ExecuTorch lowered with weights by name. Its settings are arguments, and torch's are torch's."""

    name = "executorch"
    distributions = ("executorch",)
    programs = ("executorch.exir",)
    tried_releases = MappingProxyType({"executorch": ">=1.3,<1.6"})
    self_test = "cachec_executorch.self_test:self_test"

    def link(self, artifact: File | Program, weights: WeightSet) -> Any:
        """A ``cachec_executorch.running.LinkedMethod`` over the weights. Imports torch and ExecuTorch's runtime."""
        if not isinstance(artifact, File) or artifact.kind != KIND:
            raise PluginError(f"{artifact!r} is not of kind {KIND!r}; cachec_executorch.compile makes such files")
        from cachec_executorch.running import linked

        return linked(artifact, weights)
