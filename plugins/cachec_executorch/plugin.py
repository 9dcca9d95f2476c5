"""The plugin object for ExecuTorch, which it imports only to link a program."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from cachec.errors import PluginError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_executorch.pte_file import KIND
from cachec_mlir.plugin import FilePlugin


class ExecutorchPlugin(FilePlugin):
    """Programs that ExecuTorch lowered with weights by name. ExecuTorch's settings are arguments of ``compile``."""

    name = "executorch"
    distributions = ("executorch",)
    programs = ("executorch.exir",)
    tried_releases = MappingProxyType({"executorch": ">=1.3,<1.6"})
    self_test = "cachec_executorch.self_test:self_test"

    def link(self, artifact: File | Program, weights: WeightSet) -> Any:
        """Return a ``cachec_executorch.runtime.LinkedMethod``. Imports torch and ExecuTorch's runtime."""
        if not isinstance(artifact, File) or artifact.kind != KIND:
            raise PluginError(f"{artifact!r} is not of kind {KIND!r}; cachec_executorch.compile makes such files")
        from cachec_executorch.runtime import link

        return link(artifact, weights)
