"""Weight sets: the caller's weights by reference (argument path, name), those that the stage made with their bytes.

A whole set of the caller's, passed through, is one reference and costs no look at a weight; a few weights over one cost
as many looks.
"""

from __future__ import annotations

from collections.abc import Callable

from cachec.codecs.base import Sink, Source, corrupt, unstorable
from cachec.errors import UnknownWeight, UsageError, WeightError, WeightReadError
from cachec.model import CallerSet, CallerWeight, OwnedWeight, Weights
from cachec.weights import Weight, WeightSet

#: The caller's weight set at an argument path. Raises LookupError where there is none.
Caller = Callable[[str], WeightSet]


def encode_weights(value: WeightSet, sink: Sink, where: str) -> CallerSet | Weights:
    """The set as references and artifacts. Raises UnstorableResult for a placeholder that stands for no argument."""
    whole = value.whole_origin()
    if whole is not None:
        return CallerSet(whole)
    found = value.overlaid_on()
    base, names = ("", tuple(value)) if found is None else found
    items: list[CallerWeight | OwnedWeight] = []
    for name in names:
        weight = value[name]
        origin = value.origin(name)
        if origin is not None:
            items.append(CallerWeight(origin[0], origin[1], weight.spec.alias))
            continue
        try:
            data = weight.raw()
        except WeightReadError as error:
            raise unstorable(
                value,
                f"{where}[{name!r}]",
                "return the stage's own weight set (or a part of it) instead of its .placeholders()",
                "a placeholder without bytes",
            ) from error
        items.append(OwnedWeight(weight.spec, sink.add_bytes(data)))
        del data  # before the next weight is made
    return Weights(names, tuple(items), base, "" if base else _ranked_by(value))


def _ranked_by(value: WeightSet) -> str:
    """The argument whose worker the set belongs to."""
    return next(iter(value.source.arguments()), "") if value.worker is not None else ""


def decode_caller_set(node: CallerSet, caller: Caller) -> WeightSet:
    """The caller's own set. Raises StoreFault (row-corrupt) where the call has no such argument."""
    try:
        return caller(node.where)
    except LookupError as error:
        raise corrupt(f"the result refers to weights at {node.where!r}, where the call has none") from error


def decode_weights(node: Weights, source: Source, caller: Caller) -> WeightSet:
    """The caller's weights and the stored ones, under the names that the result had. Raises StoreFault."""
    if len(node.names) != len(node.items) or len(set(node.names)) != len(node.names):
        raise corrupt("a weight set with a name twice, or with too few of them")
    owned = {
        name: (source.path(item.artifact), item.spec)
        for name, item in zip(node.names, node.items, strict=True)
        if isinstance(item, OwnedWeight)
    }
    callers: dict[str, WeightSet] = {}
    ties: dict[str, list[str]] = {}
    handles: dict[str, Weight] = {}
    try:
        stored = WeightSet.from_files(owned)
        for name, item in zip(node.names, node.items, strict=True):
            if isinstance(item, OwnedWeight):
                handles[name], alias = stored[name], item.spec.alias
            else:
                if item.where not in callers:
                    callers[item.where] = decode_caller_set(CallerSet(item.where), caller)
                handles[name], alias = callers[item.where][item.name], item.alias
            if alias is not None:
                ties.setdefault(alias, []).append(name)
        base = decode_caller_set(CallerSet(node.base), caller) if node.base else None
        groups = [(first, *(name for name in names if name != first)) for first, names in ties.items()]
        if base is not None:
            return base.overlay(WeightSet.from_weights(handles, tied=groups), replace=True)
        # Workers share the row, so it can't say which one this is.
        rank = decode_caller_set(CallerSet(node.ranked), caller).worker if node.ranked else None
        return WeightSet.from_weights(handles, tied=groups, rank=rank)
    except (UnknownWeight, UsageError, WeightError) as error:
        raise corrupt(f"a stored weight set: {error}") from error
