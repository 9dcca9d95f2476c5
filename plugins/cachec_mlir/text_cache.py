"""Facts about MLIR texts, cached between processes.

A fact depends on the text, the options and the state of each file of this package at the import of this module. The
output of bindings is not cached, because it changes with their version.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Annotated

import msgspec

from cachec.base.hashing import FileDigests, Hasher
from cachec.model import WeightSpec
from cachec.programs.weight_files import Conclusions
from cachec.weights.dtypes import SIZES

Topology = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Dimension = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Weight(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    dtype: str
    shape: tuple[_Dimension, ...]


class WeightlessText(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The facts about a text without bytes of weights."""

    #: None if every byte counts.
    topology: Topology | None
    #: The weights that it refers to.
    weights: tuple[_Weight, ...]

    @classmethod
    def of(cls, topology: str | None, specs: Iterable[WeightSpec]) -> WeightlessText:
        """Make it from specs, which must follow from a type alone (``blobs.spec_of``)."""
        return cls(topology, tuple(_Weight(each.name, each.dtype, each.shape) for each in specs))

    def specs(self) -> dict[str, WeightSpec]:
        """Return the specs by name. Raises ValueError for a repeated name, and for an unknown dtype."""
        specs: dict[str, WeightSpec] = {}
        for name, dtype, shape in ((each.name, each.dtype, each.shape) for each in self.weights):
            if name in specs or dtype not in SIZES:
                raise ValueError(f"weight {name!r} of {dtype!r}")
            specs[name] = WeightSpec(name=name, dtype=dtype, shape=shape, nbytes=math.prod(shape) * SIZES[dtype])
        return specs


def topologies(digests: FileDigests) -> Conclusions[Topology]:
    """Return the cache of topologies, by the digest of the text and whether locations count."""
    return Conclusions(digests.memory, "mlir-topology", Topology)


def weightless_texts(digests: FileDigests) -> Conclusions[WeightlessText]:
    """Return the cache of texts without weights, by the digest of the text and all options of ``program``."""
    return Conclusions(digests.memory, "mlir-unweighted", WeightlessText)


def _package() -> str:
    """Hash the state of each file of this package."""
    hasher = Hasher("package")
    for folder, names, files in os.walk(os.path.dirname(__file__)):
        names.sort()
        for name in sorted(file for file in files if file.endswith(".py")):
            path = os.path.join(folder, name)
            status = os.stat(path)
            hasher.part(path, b"%d %d %d" % (status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return hasher.digest()


#: A part of each key, so that another version of this package finds no fact.
PACKAGE = _package()
