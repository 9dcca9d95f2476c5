"""The plugin object for MLIR, and base classes for plugins with MLIR programs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cachec.errors import UsageError
from cachec.programs.artifact import File
from cachec.programs.plugin import ArtifactWriter, Fingerprint, Plugin, Reproducer, StrippedFile
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_mlir.live.bindings import MODULES, bindings_of

#: The symbol of the outermost module of a text, which may stand behind aliases and comments.
_MODULE = re.compile(rb'^\s*(?:builtin\.)?module +@([\w$.-]+|"[^"\n]*")', re.MULTILINE)

#: Bytes of a text in which it is looked for.
_HEAD = 1 << 16


class MlirFormats(Plugin):
    """A plugin with MLIR programs."""

    def title(self, ir: bytes) -> str:
        """The symbol of the module of a text."""
        found = _MODULE.search(ir[:_HEAD])
        return "" if found is None else found[1].decode(errors="replace").strip('"')

    def difference(self, before: bytes, after: bytes) -> str:
        """The first operations that differ, of two texts. Raises PluginError for bytecode."""
        from cachec_mlir.explain.operation_diff import difference

        return difference(before, after)

    def suffix(self, format: str) -> str:
        """``.mlir``, or of bytecode ``.mlirbc``."""
        return ".mlirbc" if "bytecode" in format else ".mlir"


class FilePlugin(MlirFormats):
    """A plugin for a compiler that makes files, byte for byte the same each time."""

    def compare(self, fresh: Any, stored: Any) -> str | None:
        """Return None if two files are equal byte for byte, else a text with their first difference."""
        if not isinstance(fresh, File) or not isinstance(stored, File):
            raise self._refusal("compare", fresh)
        a, b = fresh.read_bytes(), stored.read_bytes()
        if a == b:
            return None
        where = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        return f"{len(a)} against {len(b)} bytes, first difference at byte {where}"


class MlirPlugin(MlirFormats):
    """Modules of any MLIR: live ones of its bindings as arguments and results, files to strip and to link."""

    name = "mlir"
    types = tuple(MODULES)

    def fingerprint(self, value: Any) -> Fingerprint:
        """Hash the current operations and resources of a live ``ir.Module``, which passes change in place.

        Names and locations do not count. If they must, pass ``program(module, locations=True).program``.
        """
        from cachec_mlir.live import live_modules

        return live_modules.fingerprint(value)

    def strip(self, value: Any, weights: WeightSet) -> Program:
        """Return the program of a live ``ir.Module`` with exactly these weights as resources. Raises LinkError."""
        from cachec_mlir.programs import program

        if bindings_of(value) is None:
            raise self._refusal("strip", value)
        stripped = program(value).program
        stripped.manifest.check(weights.specs)
        return stripped

    def encode(self, value: Any, out: ArtifactWriter) -> dict[str, Any]:
        """A live ``ir.Module``: bytecode without resources, and an artifact for each of these."""
        from cachec_mlir.live import live_modules

        return live_modules.encode(value, out)

    def decode(self, meta: Mapping[str, Any], artifacts: Sequence[Path]) -> Any:
        """Return the module in a new context, with its resources mapped. Raises PluginError, StoreFault."""
        from cachec_mlir.live import live_modules

        return live_modules.decode(meta, artifacts)

    def strip_file(self, path: Path, stand_in: str) -> StrippedFile:
        """A module, text or bytecode; ``stand_in`` is one of ``strip``'s targets (``parameter``, ``resource``, ...)."""
        from cachec_mlir.strip_and_link import strip
        from cachec_mlir.text.stripper import TARGETS

        if stand_in not in TARGETS:
            raise UsageError(f"strip expected one of {', '.join(TARGETS)}, found {stand_in!r}")
        # The caller writes all weights to a file, which checks each digit.
        stripped = strip(path, to=stand_in, checked=False)  # type: ignore[arg-type]  # it is one of TARGETS
        specs = {name: resource.spec() for name, resource in stripped.resources.items()}
        return StrippedFile(stripped.ir, stripped.resources.weights(specs))

    def compare(self, fresh: Any, stored: Any) -> str | None:
        """Return None if two live modules have equal operations and resources."""
        from cachec_mlir.live import live_modules

        if bindings_of(fresh) is None or bindings_of(stored) is None:
            raise self._refusal("compare", fresh)
        return live_modules.compare(fresh, stored)

    def reproducer(self, command: Sequence[str], data: bytes) -> Reproducer | None:
        """A text with the pipeline of an mlir-opt in its trailer, for ``--run-reproducer``."""
        from cachec_mlir.explain.reproducers import reproducer

        return reproducer(command, data)
