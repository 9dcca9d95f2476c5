"""The plugin object for native code."""

from __future__ import annotations

from typing import Any

from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_mlir.plugin import FilePlugin

#: The kind of the files of ``to_library``.
KIND = "native:library"


class NativePlugin(FilePlugin):
    """Links shared libraries with weights as undefined symbols. Its programs are LLVM IR."""

    name = "native"

    def link(self, artifact: File | Program, weights: WeightSet) -> Any:
        """Return a ``cachec_native.linker.NativeLinked`` of a library of kind ``native:library``. Imports numpy."""
        if not isinstance(artifact, File) or artifact.kind != KIND:
            raise self._refusal("link", artifact)
        from cachec_native.linker import link

        return link(artifact, weights)

    def suffix(self, format: str) -> str:
        """``.ll``: LLVM IR."""
        return ".ll"
