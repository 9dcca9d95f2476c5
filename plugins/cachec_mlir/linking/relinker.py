"""New IR with the resources of an older file, after a change of dialect, compiler phase or program.

The kernel copies bytes from file to file, or the new file refers to them in place. Names are matched by a record of the
compiler's renames (see ``renames``), or are unchanged and unambiguous.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cachec.errors import LinkError
from cachec.programs.weight_files import Extent
from cachec.weights import WeightSet
from cachec_mlir.blobs import Resources, spec_of
from cachec_mlir.bytecode.reader import is_bytecode
from cachec_mlir.file_writer import LinkResult, write
from cachec_mlir.linking.archives import write_references
from cachec_mlir.linking.renames import Renames
from cachec_mlir.module_input import Source, open_input
from cachec_mlir.strip_and_link import link, open_unlinked, strip
from cachec_mlir.weight_binding import bind, unused_names

_SUFFIX = re.compile(r"_[0-9]+\Z")


@dataclass(frozen=True)
class RelinkResult:
    """The result of ``relink_by_reference``."""

    #: Bytes of the IR.
    nbytes: int
    #: Name in the module -> place of its bytes in the old file, for ``cachec.open_weights``.
    archive: Path
    #: Names of the old module that the new one does not use.
    unused: tuple[str, ...]
    #: The resources of the old module.
    resources: Resources = field(repr=False)
    #: Name in the new module -> name in the old one, and type (empty if unknown).
    wanted: Mapping[str, tuple[str, str]] = field(repr=False)

    def weights(self) -> WeightSet:
        """The weights over the old file, by their names in the module; of the types that its text states."""
        specs = {other: spec_of(other, kind) for other, kind in self.wanted.values()}
        typed = {name: spec for name, spec in specs.items() if spec is not None and spec.dtype != "bool"}
        weights = self.resources.weights(typed, only={other for other, _ in self.wanted.values()})
        return WeightSet.from_weights({name: weights[other] for name, (other, _) in self.wanted.items()})


def relink(
    ir: Source,
    old: Source,
    target: str | os.PathLike[str],
    *,
    renames: Renames | Mapping[str, str] | None = None,
    fsync: bool = False,
) -> LinkResult:
    """Write ``target``: the module ``ir``, which has no bytes of its resources, with those of the module ``old``.

    renames: the result of ``mark(...).find_renames`` or ``find_renames``, or name in ``ir`` -> name in ``old``. Without
    it every name is taken to be what it was, and one that a suffix may have made of another of ``old`` (``w0_2`` where
    there is a ``w0``) is refused. Resources keep their alignment. All of the file is written, or nothing.

    Raises LinkError (names that are missing, or may be another's; sizes that differ), CheckpointError, WeightsChanged,
    OSError.
    """
    lacking = open_unlinked(ir)
    resources, names = _match_names(lacking.wanted, old, renames)
    return link(lacking, resources, target, names=names, fsync=fsync)


def relink_by_reference(
    ir: Source,
    old: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    renames: Renames | Mapping[str, str] | None = None,
    fsync: bool = False,
) -> RelinkResult:
    """The same without a copy: ``target`` is the module as it is, ``TARGET.irpa`` says where in ``old`` its bytes are.

    ``old`` has to be bytecode in the folder of ``target`` or below it, and stay as it is. Weights have the types that
    the text ``ir`` states. For bytecode they are uint8 vectors, as only MLIR can read its types, and so they are in the
    archive: ``open_weights(archive, specs=manifest)`` sets the types.
    Raises as ``relink``.
    """
    if not is_bytecode(old):
        raise LinkError(f"{os.fspath(old)} is a text: its bytes are digits, which nothing can refer to; use relink")
    wanted = open_unlinked(ir).wanted
    resources, names = _match_names(wanted, old, renames)
    bound = bind(wanted, resources, names)
    places = {name: each.blob.place for name, each in bound.items()}
    extents = {name: place for name, place in places.items() if isinstance(place, Extent)}
    module = open_input(ir)
    whole = module.range(0, module.size)
    path = os.path.abspath(os.fspath(target))
    nbytes = write(path, [bytes(whole) if isinstance(whole, memoryview) else module.at(0, module.size, "the module")])
    archive = f"{path}.irpa"
    try:
        write_references(archive, extents, fsync=fsync)
    except BaseException:
        os.unlink(path)
        raise
    there = {name: (names.get(name, name), kinds[-1] if kinds else "") for name, kinds in wanted.items()}
    return RelinkResult(nbytes, Path(archive), unused_names(resources, bound, names), resources, there)


def without_suffix(name: str, there: Container[str]) -> str | None:
    """Return the name in ``there`` that a compiler may have changed to ``name`` by a suffix of digits, or None."""
    while (match := _SUFFIX.search(name)) is not None:
        name = name[: match.start()]
        if name in there:
            return name
    return None


def _match_names(
    wanted: Collection[str], old: Source, renames: Renames | Mapping[str, str] | None
) -> tuple[Resources, dict[str, str]]:
    """The old resources, and name in the new module -> name there. Raises LinkError for what is not certain."""
    resources = strip(old).resources
    if renames is None:
        for name in wanted:
            shorter = without_suffix(name, resources)
            if shorter is not None and name in resources:
                raise LinkError(
                    f"resource {name!r} may be {name!r} of the old module, or {shorter!r} under a name that a "
                    "compiler gave it; say which by renames="
                )
        return resources, {}
    names = dict(renames.names if isinstance(renames, Renames) else renames)
    unknown = sorted(name for name in wanted if name not in names)
    if unknown:
        raise LinkError(f"renames= says nothing of {len(unknown)} resources of the module, first {unknown[0]!r}")
    return resources, {name: names[name] for name in wanted}
