"""A toy compiler with its plugin: quick to run, nothing to install, complete enough for the conformance suite.

A toy program is ``y = scale * sum(w @ x for every matrix w)``, and ``sum(w) * x`` of every other weight; its IR and its
module are JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cachec.errors import LinkError, PluginError
from cachec.programs.artifact import File
from cachec.programs.plugin import Plugin
from cachec.programs.program import Program
from cachec.weights import WeightSet

FORMAT = "toy:json"


def to_toy(weights: WeightSet, scale: float) -> Program:
    """The program for weights of these names, with ``scale`` in it by value."""
    return Program(json.dumps({"names": sorted(weights), "scale": scale}), format=FORMAT, manifest=weights.manifest)


def compile_toy(program: Program, path: Path) -> File:
    """Compile to ``path``. Raises PluginError for another format."""
    if program.format != FORMAT:
        raise PluginError(f"the toy compiler takes {FORMAT}; this program is {program.format!r}")
    path.write_bytes(program.ir)
    return File(path, kind=FORMAT, manifest=program.manifest)


class ToyPlugin(Plugin):
    """Links toy modules. settings: what it reports as the toy's live state."""

    name = "toy"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.settings = dict(settings or {})

    def ambient(self) -> Mapping[str, str]:
        """The settings given."""
        return self.settings

    def link(self, artifact: File | Program, weights: WeightSet) -> Any:
        """A function from one array to one array. Raises LinkError for what is no toy module."""
        try:
            module = json.loads(Path(artifact.path).read_bytes() if isinstance(artifact, File) else artifact.ir)
            names, scale = module["names"], module["scale"]
        except (ValueError, KeyError, TypeError) as error:
            raise LinkError(f"{artifact!r} is no toy module: {error}") from error
        arrays = [weights[name].read() for name in names]
        return lambda x: scale * sum(array @ x if array.ndim > 1 else array.sum() * x for array in arrays)

    def compare(self, fresh: Any, stored: Any) -> str | None:
        """None where two modules are equal byte for byte."""
        return None if fresh.read_bytes() == stored.read_bytes() else "the modules differ"
