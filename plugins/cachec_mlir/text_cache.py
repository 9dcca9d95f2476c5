"""What this package found out about texts, remembered by a cache between processes.

An answer follows from the text, the options and this package: from each of its files, as they were when this module was
imported. What bindings print is not remembered: it changes with their version.
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
    """What is to be known of a text that holds no weights. topology: None where every byte counts. weights: those that
    it refers to."""

    topology: Topology | None
    weights: tuple[_Weight, ...]

    @classmethod
    def of(cls, topology: str | None, specs: Iterable[WeightSpec]) -> WeightlessText:
        """The same of specs, which have to be those of a type alone (``blobs.spec_of``)."""
        return cls(topology, tuple(_Weight(each.name, each.dtype, each.shape) for each in specs))

    def specs(self) -> dict[str, WeightSpec]:
        """The specs by name. Raises ValueError for a name that is there twice, and for what is no dtype."""
        specs: dict[str, WeightSpec] = {}
        for name, dtype, shape in ((each.name, each.dtype, each.shape) for each in self.weights):
            if name in specs or dtype not in SIZES:
                raise ValueError(f"weight {name!r} of {dtype!r}")
            specs[name] = WeightSpec(name=name, dtype=dtype, shape=shape, nbytes=math.prod(shape) * SIZES[dtype])
        return specs


def topologies(digests: FileDigests) -> Conclusions[Topology]:
    """Topologies of texts, by their digest and whether locations count."""
    return Conclusions(digests.memory, "mlir-topology", Topology)


def weightless_texts(digests: FileDigests) -> Conclusions[WeightlessText]:
    """Texts that hold no weights, by their digest and all options of ``program``."""
    return Conclusions(digests.memory, "mlir-unweighted", WeightlessText)


def _package() -> str:
    """The state of each file of this package."""
    hasher = Hasher("package")
    for folder, names, files in os.walk(os.path.dirname(__file__)):
        names.sort()
        for name in sorted(file for file in files if file.endswith(".py")):
            path = os.path.join(folder, name)
            status = os.stat(path)
            hasher.part(path, b"%d %d %d" % (status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return hasher.digest()


#: Named in whatever is asked: of another version nothing is known.
PACKAGE = _package()
