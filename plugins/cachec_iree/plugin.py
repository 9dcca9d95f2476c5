"""The plugin object for IREE."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cachec.errors import PluginError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_iree.compiler import KIND
from cachec_iree.parameters import Parameters
from cachec_mlir.plugin import FilePlugin


class IreePlugin(FilePlugin):
    """Links ``iree:vmfb`` files. iree-compile runs as a command, so no live state of it is in a key."""

    name = "iree"
    distributions = ("iree-base-compiler", "iree-base-runtime")
    programs = ("iree.compiler",)
    tried_releases = MappingProxyType({"iree-base-compiler": ">=3.4,<3.14", "iree-base-runtime": ">=3.4,<3.14"})
    self_test = "cachec_iree.self_test:self_test"

    def ambient(self) -> Mapping[str, str]:
        """Return no setting: iree-compile is a command, which gets only the variables that the stage declares."""
        return {}

    def link(self, artifact: File | Program, weights: WeightSet) -> Any:
        """Return a ``cachec_iree.runtime.LinkedModule`` with mapped weights. Imports iree.runtime."""
        if not isinstance(artifact, File) or artifact.kind != KIND:
            raise PluginError(f"{artifact!r} is not of kind {KIND!r}; cachec_iree.compile makes such files")
        parameters = Parameters(weights)  # reads in a thread during the import of the runtime
        from cachec_iree.runtime import LinkedModule

        return LinkedModule(artifact.path, parameters.views())
