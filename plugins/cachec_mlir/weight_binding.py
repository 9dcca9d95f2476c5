"""Binding of weights to the names of a module: bytes for each name, checked against the manifest."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Set
from typing import NamedTuple

from msgspec.structs import replace

from cachec.base.display_text import argument_hint, nearest
from cachec.errors import LinkError, UsageError
from cachec.model import WeightSpec
from cachec.weights import Weight
from cachec.weights.dtypes import SIZES
from cachec.weights.manifest import Manifest
from cachec_mlir.blobs import BUFFER_ALIGNMENT, ELIDED, Blob, Resource, element_type, spec_of

#: The weights for a link: a weight set, or the resources of another module.
Weights = Mapping[str, Weight] | Mapping[str, Resource]

#: The alignment of the weights, in bytes: of all, by name in ``Weights``, or None for each one's own.
Alignment = int | Mapping[str, int] | None

#: The largest alignment that the text of a module can state.
_MOST = 1 << 31


class BoundResource(NamedTuple):
    """Bytes for one name of a module that is linked."""

    alignment: int
    blob: Blob
    spec: WeightSpec | None


def check_alignment(alignment: Alignment) -> None:
    """Raise UsageError unless all are powers of two that a module can state."""
    each = () if alignment is None else (alignment,) if isinstance(alignment, int) else alignment.values()
    for value in each:
        if not 1 <= value <= _MOST or value & (value - 1):
            raise UsageError(f"link: alignment expected a power of two of at most {_MOST}, found {value}")


def natural_alignment(spec: WeightSpec, kinds: Collection[str] = ()) -> int:
    """The alignment that MLIR gives a resource of this type: the size of one element.

    kinds: the types that the module states for it. Where nothing states the type (a weight of bytecode is a vector of
    uint8), the alignment is one that fits all types and that all readers give.
    """
    stated = [known[0] for kind in kinds if (known := element_type(kind)) is not None]
    dtype = stated[0] if stated else spec.dtype
    return BUFFER_ALIGNMENT if dtype == "uint8" and not stated else SIZES.get(dtype, BUFFER_ALIGNMENT)


def check_link(there: Set[str], weights: Weights, names: Mapping[str, str] | None, alignment: Alignment) -> None:
    """Raise UsageError for an invalid alignment, and LinkError for names with bytes in the module (``there``)."""
    check_alignment(alignment)
    double = there & {*weights, *(names or ())}
    if double:
        raise LinkError(
            f"the module has bytes of {min(double)!r}, and so has what it is linked to; strip one, or select others"
        )


def unused_names(
    weights: Weights, bound: Mapping[str, BoundResource], names: Mapping[str, str] | None
) -> tuple[str, ...]:
    """Return the names of weights that the module does not use, sorted."""
    return tuple(sorted(set(weights) - {(names or {}).get(name, name) for name in bound}))


def match_weights(
    weights: Weights,
    wanted: Mapping[str, Collection[str]],
    names: Mapping[str, str] | None,
    alignment: Alignment,
) -> dict[str, BoundResource]:
    """Return bytes for each wanted name, by this name or by ``names`` (name in the module -> name in ``weights``).

    wanted: name -> types of it in the module. alignment: by default a resource keeps its own, and a weight gets that of
    its type (``natural_alignment``). Raises LinkError for a missing name, and for one that is mapped but not wanted.
    """
    names = names or {}
    if ELIDED in wanted and ELIDED not in names:
        raise LinkError("constants of the module were elided when it was printed, and are lost; print it in full")
    strange = sorted(set(names) - set(wanted))
    if strange:
        raise LinkError(
            f"{_names()} maps {strange[0]!r}, which the module does not declare; it declares {_few(wanted)}"
        )
    there = set(weights)
    missing = sorted(name for name in wanted if names.get(name, name) not in there)
    if missing:
        first = names.get(missing[0], missing[0])
        near = nearest(first, weights)
        one, other = missing[0], near
        say = argument_hint(f"say names={{{one!r}: {other!r}}}", f"say --name {shlex.quote(f'{one}={other}')}")
        hint = f"; if {near!r} is meant, {say}" if near else ""
        mapped = f", which {_names()} says is {first!r}" if first != missing[0] else ""
        raise LinkError(f"no bytes for {len(missing)} resources of the module, first {missing[0]!r}{mapped}{hint}")
    bound = {}
    for name, kinds in wanted.items():
        there_name = names.get(name, name)
        stated = alignment if alignment is None or isinstance(alignment, int) else alignment.get(there_name)
        bound[name] = _bind_one(weights[there_name], stated, kinds)
    return bound


def _names() -> str:
    return argument_hint("names=", "--name")


def bind(
    wanted: Mapping[str, Collection[str]],
    weights: Weights,
    names: Mapping[str, str] | None = None,
    manifest: Manifest | None = None,
    *,
    alignment: Alignment = None,
) -> dict[str, BoundResource]:
    """Match weights (``match_weights``), and check them against the types in the module, and against the manifest."""
    bound = match_weights(weights, wanted, names, alignment)
    for name, kinds in wanted.items():
        for kind in kinds:
            _check_type(name, kind, bound[name])
    if manifest is not None:
        _check_manifest(manifest, bound, weights, names)
    return bound


def _check_manifest(
    manifest: Manifest,
    bound: Mapping[str, BoundResource],
    weights: Weights,
    names: Mapping[str, str] | None,
) -> None:
    """Raise LinkError unless the bound and the other given weights are exactly those of the manifest.

    That includes ties: names are tied if the weights state it, or if ``names`` maps them to one weight. Resources of an
    unknown type (of bytecode) are compared by their size.
    """
    there = {name: (names or {}).get(name, name) for name in bound}
    others = set(weights).difference(there.values())
    clash = min(others.intersection(there), default=None)
    if clash is not None:
        raise LinkError(
            f"{_names()} binds {clash!r} to {there[clash]!r}, and a weight {clash!r} was offered too; "
            "leave that one out"
        )
    given = {name: (there[name], each.spec, each.blob.nbytes) for name, each in bound.items()}
    given |= {name: (name, *_spec_and_size(weights[name])) for name in others}
    check_specs(manifest, given)


def check_specs(manifest: Manifest, given: Mapping[str, tuple[str, WeightSpec | None, int]]) -> None:
    """Raise LinkError unless ``given`` is exactly the manifest.

    given: name in the module -> name of the weight, its spec (None for the expected type, if the size fits), bytes.
    """
    groups: dict[str, list[str]] = {}
    for name, (there, spec, _) in given.items():
        groups.setdefault(there if spec is None or spec.alias is None else spec.alias, []).append(name)
    alias = {name: min(group) for group in groups.values() if len(group) > 1 for name in group}
    specs = {
        name: _expected_spec(manifest, name, spec, nbytes, alias.get(name)) for name, (_, spec, nbytes) in given.items()
    }
    manifest.check(specs)


def _check_type(name: str, kind: str, bound: BoundResource) -> None:
    """Raise LinkError unless the bound bytes have the size in the module, and its type, if known."""
    known = spec_of(name, kind)
    if known is None:
        return
    nbytes = known.nbytes
    packed = known.dtype == "bool" and bound.blob.nbytes == -(-nbytes // 8)
    if bound.blob.nbytes != nbytes and not packed:
        raise LinkError(f"resource {name!r}: {kind} takes {nbytes} bytes, what it is linked to has {bound.blob.nbytes}")
    spec = bound.spec
    raw = spec is None or (spec.dtype == "uint8" and len(spec.shape) == 1)
    if spec is not None and not raw and (spec.dtype, spec.shape) != (known.dtype, known.shape):
        raise LinkError(f"resource {name!r}: expected {kind}, found {spec.dtype} {list(spec.shape)}")


def _spec_and_size(given: Weight | Resource) -> tuple[WeightSpec | None, int]:
    return (None, given.nbytes) if isinstance(given, Resource) else (given.spec, given.nbytes)


def _expected_spec(
    manifest: Manifest, name: str, spec: WeightSpec | None, nbytes: int, alias: str | None
) -> WeightSpec:
    if spec is None:
        expected = manifest.weights.get(name)
        if expected is None or expected.nbytes != nbytes:
            return WeightSpec(name=name, dtype="uint8", shape=(nbytes,), nbytes=nbytes)
        spec = expected
    return replace(spec, name=name, alias=alias)


def _bind_one(given: Weight | Resource, alignment: int | None, kinds: Collection[str]) -> BoundResource:
    if isinstance(given, Resource):
        return BoundResource(alignment or given.alignment, given.blob, None)
    ways = given.expose()
    place = ways.extent()  # also in a stage: only the bytes get out
    return BoundResource(
        alignment or natural_alignment(given.spec, kinds), Blob(ways.view() if place is None else place), given.spec
    )


def _few(names: Collection[str]) -> str:
    shown = ", ".join(repr(name) for name in sorted(names)[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown or "none"
