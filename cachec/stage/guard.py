"""Finds the weight sets inside arguments and results, and puts others in their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from cachec.weights import WeightSet


def replace_weights(value: Any, path: str, replace: Callable[[WeightSet, str], WeightSet]) -> Any:
    """``value`` with each weight set in it replaced by ``replace(weights, path)``.

    Looks into tuples, lists, dicts and dataclasses; a container with no weight set inside is returned itself, one with
    some is made again, so the caller's is never changed. Paths read like the code: ``options['a'][2].weights``.
    """
    if isinstance(value, WeightSet):
        return replace(value, path)
    kind = type(value)
    if kind is dict:
        items = {k: replace_weights(v, f"{path}[{k!r}]", replace) for k, v in value.items()}
        return items if any(items[k] is not value[k] for k in value) else value
    if kind is list or isinstance(value, tuple):
        made = [replace_weights(v, f"{path}[{i}]", replace) for i, v in enumerate(value)]
        if all(new is old for new, old in zip(made, value, strict=True)):
            return value
        if kind in {list, tuple}:
            return kind(made)
        return kind(*made)  # a named tuple
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {}
        for each in dataclasses.fields(value):
            old = getattr(value, each.name, None)
            new = replace_weights(old, f"{path}.{each.name}", replace)
            if new is not old:
                changes[each.name] = new
        return dataclasses.replace(value, **changes) if changes else value
    return value


def callers_weights(result: Any, arguments: Mapping[str, WeightSet]) -> Any:
    """``result`` with weight sets that came from the arguments given back as the caller's own, unguarded.

    arguments: the caller's weight sets by argument path.
    """

    def back(weights: WeightSet, _path: str) -> WeightSet:
        whole = weights.whole_origin()
        if whole is not None and whole in arguments:
            return arguments[whole]
        return weights.unguarded(arguments)

    return replace_weights(result, "result", back)
