"""IR plus reference: a stripped text and the file that its references are bound to, with no byte of a weight in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cachec.errors import CheckpointError, LinkError, UsageError
from cachec.weights import WeightSet, open_weights
from cachec.weights.manifest import Manifest
from cachec_mlir.file_writer import write
from cachec_mlir.module_input import Source, open_input
from cachec_mlir.text.references import reference_text, types
from cachec_mlir.text.references import references as find_references
from cachec_mlir.text.scanner import apply_edits
from cachec_mlir.text.stripper import SCOPE, Target, strip_text
from cachec_mlir.weight_binding import bind, unused_names

#: What ``iree-run-module --parameters=SCOPE=FILE`` tells formats by.
_SUFFIXES = frozenset({".irpa", ".safetensors", ".gguf"})


class ReferResult(NamedTuple):
    """What ``refer`` wrote. nbytes: of the IR. archive: the parameter file, None where references are symbols.

    written: whether the archive was made; else it is a file of the weights, in place. unused: names that were offered
    and not asked for.
    """

    nbytes: int
    archive: Path | None
    written: bool
    unused: tuple[str, ...]


def refer(
    ir: Source,
    weights: WeightSet,
    target: str | os.PathLike[str],
    *,
    to: Target = "parameter",
    scope: str = SCOPE,
    names: Mapping[str, str] | None = None,
    manifest: Manifest | None = None,
    archive: str | os.PathLike[str] | None = None,
    fsync: bool = False,
) -> ReferResult:
    """Write the stripped text ``ir`` to ``target`` with references of the kind ``to``, checked against ``weights``.

    ``parameter``: names in the text become those of the file where all weights lie in one ``.safetensors``, ``.irpa``
    or ``.gguf`` file, which is used in place; else an archive is written, at ``archive`` (``TARGET.irpa``, if that is
    not given), with bytes copied by the kernel. If ``archive`` is given, it is always written. ``external`` and
    ``undefined``: names are symbols, and stay; their loader binds them.

    names, manifest: see ``link``. Raises LinkError (a weight is missing, is of another type, or stands where there can
    be no reference; or the module has bytes of its own), CheckpointError, WeightsChanged, OSError, UsageError. Nothing
    is left of a file that could not be written in full.
    """
    if to == "resource":
        raise UsageError("refer: a resource without bytes refers to nothing; use link, or to='parameter'")
    stripped = strip_text(ir, to=to, scope=scope)
    if stripped.resources:
        raise LinkError(f"the module has bytes of {next(iter(stripped.resources))!r} itself; strip it first")
    module = open_input(stripped.ir)
    remaining = find_references(module, stripped.ir, "resource", scope)
    if remaining:
        raise LinkError(
            f"resource {remaining[0].name!r} at byte {remaining[0].start} stands where no {to} can; link it instead"
        )
    used = find_references(module, stripped.ir, to, scope)
    bound = bind(types(used), weights, names, manifest)
    there = {name: (names or {}).get(name, name) for name in bound}
    omitted = unused_names(weights, bound, names)
    if to != "parameter":
        return ReferResult(write(target, [stripped.ir], fsync=fsync), None, False, omitted)
    in_place = None if archive is not None else _in_place(weights, there)
    if in_place is not None:
        path, renamed = in_place
        edits = ((each.start, each.end, reference_text("parameter", scope, renamed[each.name])) for each in used)
        return ReferResult(write(target, [apply_edits(stripped.ir, edits)], fsync=fsync), path, False, omitted)
    path = Path(f"{os.fspath(target)}.irpa" if archive is None else archive)
    chosen = WeightSet.from_weights({name: weights[other] for name, other in there.items()})
    was_there = path.exists()
    chosen.save(path, format="irpa", fsync=fsync)
    try:
        nbytes = write(target, [stripped.ir], fsync=fsync)
    except BaseException:
        if not was_there:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        raise
    return ReferResult(nbytes, path, True, omitted)


def _in_place(weights: WeightSet, there: Mapping[str, str]) -> tuple[Path, dict[str, str]] | None:
    """Return the one file of all weights, and name in the module -> name in that file; None for several files."""
    places = {name: weights[other].place() for name, other in there.items()}
    paths = {None if place is None else place.path for place in places.values()}
    path = paths.pop() if len(paths) == 1 else None
    if path is None or path.suffix not in _SUFFIXES:
        return None
    try:
        tensors = open_weights(path).layout.tensors
    except CheckpointError:
        return None
    at: dict[tuple[int, int], list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.file == 0:
            at.setdefault((tensor.offset, tensor.nbytes), []).append(name)
    renamed: dict[str, str] = {}
    for name, place in places.items():
        candidates = [] if place is None else at.get((place.offset, place.nbytes), [])
        if not candidates:
            return None
        renamed[name] = there[name] if there[name] in candidates else candidates[0]
    return path, renamed
