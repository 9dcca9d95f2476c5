"""Weight sets: the caller's weights by reference (argument path, name), weights that the stage made with their bytes.

A whole set of the caller's, passed through, is one reference and costs no look at a weight; a few weights over one cost
as many looks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from itertools import compress
from operator import attrgetter

from cachec.codecs.base import corrupt, unstorable
from cachec.errors import UnknownWeight, UsageError, WeightError, WeightReadError
from cachec.model import CallerSet, CallerWeight, OwnedWeight, Weights
from cachec.store.artifacts import ArtifactSink, ArtifactSource
from cachec.weights import Weight, WeightSet

_NAME, _WHERE, _ALIAS = attrgetter("name"), attrgetter("where"), attrgetter("alias")

#: Returns the caller's weight set at an argument path. Raises LookupError for another path.
Caller = Callable[[str], WeightSet]


def encode_weights(value: WeightSet, sink: ArtifactSink, where: str) -> CallerSet | Weights:
    """The set as references and artifacts. Raises UnstorableResult for a placeholder that stands for no argument."""
    whole = value.whole_origin()
    if whole is not None:
        return CallerSet(whole)
    overlaid = value.overlaid_on()
    base, names = ("", tuple(value)) if overlaid is None else overlaid
    from cachec.weights.io.copying import stored_form  # a hit needs none of it

    items: list[CallerWeight | OwnedWeight] = []
    for name in names:
        weight = value[name]
        origin = value.origin(name)
        if origin is not None:
            items.append(CallerWeight(origin[0], origin[1], weight.spec.alias))
            continue
        try:
            data = stored_form(weight)
        except WeightReadError as error:
            raise unstorable(
                value,
                f"{where}[{name!r}]",
                "return the stage's own weight set (or a part of it) instead of its .placeholders()",
                "a placeholder without bytes",
            ) from error
        stored = sink.add_bytes(data) if isinstance(data, memoryview) else sink.add_pieces(data)
        items.append(OwnedWeight(weight.spec, stored))
        del data  # before the next weight is made
    return Weights(names, tuple(items), base, "" if base else _ranked_by(value))


def _ranked_by(value: WeightSet) -> str:
    """Return the argument with the worker of the set."""
    return next(iter(value.source.arguments()), "") if value.worker is not None else ""


def decode_caller_set(node: CallerSet, caller: Caller) -> WeightSet:
    """The caller's own set. Raises StoreFault (row-corrupt) where the call has no such argument."""
    try:
        return caller(node.where)
    except LookupError as error:
        raise corrupt(f"the result refers to weights at {node.where!r}, where the call has none") from error


def decode_weights(node: Weights, source: ArtifactSource, caller: Caller) -> WeightSet:
    """The caller's weights and the stored ones, under the names that the result had. Raises StoreFault."""
    if len(node.names) != len(node.items) or len(set(node.names)) != len(node.names):
        raise corrupt("a weight set with a name twice, or with too few of them")
    try:
        weights = _of_one_caller(node, source, caller)
        return _of_handles(node, source, caller) if weights is None else weights
    except (UnknownWeight, UsageError, WeightError) as error:
        raise corrupt(f"a stored weight set: {error}") from error


def _of_one_caller(node: Weights, source: ArtifactSource, caller: Caller) -> WeightSet | None:
    """Without a handle a weight: weights of one argument, and others over them. None where it is something else.

    A set of thousands costs a few looks at all of its names together.
    """
    kinds = list(map(type, node.items))
    if node.base or CallerWeight not in kinds:
        return None
    names, items = node.names, node.items
    owned: dict[str, OwnedWeight] = {}
    if OwnedWeight in kinds:
        is_callers = [kind is CallerWeight for kind in kinds]
        owned = {name: item for name, item in zip(names, items, strict=True) if isinstance(item, OwnedWeight)}
        names, items = tuple(compress(names, is_callers)), tuple(compress(items, is_callers))
    where, *others = set(map(_WHERE, items))
    aliases = {*map(_ALIAS, items), *(item.spec.alias for item in owned.values())}
    if others or aliases != {None}:
        return None
    part = decode_caller_set(CallerSet(where), caller).part(names, tuple(map(_NAME, items)), rank=_rank(node, caller))
    return part.overlay(_stored_weights(owned, source), replace=True) if owned else part


def _of_handles(node: Weights, source: ArtifactSource, caller: Caller) -> WeightSet:
    callers: dict[str, WeightSet] = {}
    ties: dict[str, list[str]] = {}
    handles: dict[str, Weight] = {}
    items = dict(zip(node.names, node.items, strict=True))
    stored = _stored_weights({name: item for name, item in items.items() if isinstance(item, OwnedWeight)}, source)
    for name, item in items.items():
        if isinstance(item, OwnedWeight):
            handles[name], alias = stored[name], item.spec.alias
        else:
            if item.where not in callers:
                callers[item.where] = decode_caller_set(CallerSet(item.where), caller)
            handles[name], alias = callers[item.where][item.name], item.alias
        if alias is not None:
            ties.setdefault(alias, []).append(name)
    groups = [(first, *(name for name in names if name != first)) for first, names in ties.items()]
    if node.base:
        base = decode_caller_set(CallerSet(node.base), caller)
        return base.overlay(WeightSet.from_weights(handles, tied=groups), replace=True)
    return WeightSet.from_weights(handles, tied=groups, rank=_rank(node, caller))


def _stored_weights(owned: Mapping[str, OwnedWeight], source: ArtifactSource) -> WeightSet:
    """Return the weights with their bytes in the store."""
    weights = WeightSet.from_files({name: (source.path(item.artifact), item.spec) for name, item in owned.items()})
    weakref.finalize(weights.source, _nothing, source).atexit = False  # a lease lives as long as its store is open
    return weights


def _nothing(_source: ArtifactSource) -> None: ...


def _rank(node: Weights, caller: Caller) -> int | None:
    """Which worker the set belongs to. Workers share the row, so it can't say that itself."""
    return decode_caller_set(CallerSet(node.ranked), caller).rank if node.ranked else None
