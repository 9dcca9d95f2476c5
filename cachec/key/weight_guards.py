"""Finds the weight sets in arguments and results, and replaces them."""

from __future__ import annotations

import collections
import os
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from cachec.base.instances import attributes, field_names, present_fields
from cachec.key.describe import item_path
from cachec.key.option_encoding import MAX_DEPTH
from cachec.programs.artifact import Dir, File
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec.weights.manifest import Folded, Manifest

#: Items of a result that are looked through for texts, and the longest text that is taken for a path.
_MOST_ITEMS, _LONGEST = 10_000, 4096
_NO_TEXT = frozenset({int, float, bool, complex, type(None)})

Replace = Callable[[Any, str], Any]

_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType)


def replace_weights(value: Any, path: str, replace: Replace) -> Any:
    """``value`` with each weight set in it replaced by ``replace(weights, path)``.

    Looks into tuples, lists, mappings, namespaces and instances of dataclasses, attrs and msgspec classes; a container
    with no weight set inside is returned itself, one with some is made again, so the caller's is never changed. Paths
    are those of the key: ``options['a'][2].weights``.
    """
    return _replace_sets(value, path, replace, (), (WeightSet,))


def bare(value: Any) -> Any:
    """``value`` with no manifest in it saying what is in no key, so that no stage may see it."""
    return _relink(value, lambda manifest: manifest.bare() if manifest.callers or manifest.folded else manifest)


def with_returned_manifests(value: Any, callers: Mapping[str, str], folded: Folded) -> Any:
    """``value`` with every manifest in it as ``Manifest.with_returned_manifests`` has it."""
    return _relink(value, lambda manifest: manifest.for_caller(callers, folded))


def _relink(value: Any, change: Callable[[Manifest], Manifest]) -> Any:
    """``value`` with every program, and every file with a manifest, in it linked as ``change`` says."""

    def relink(value: Any, _path: str) -> Any:
        if isinstance(value, Manifest):
            return change(value)
        manifest = None if value.manifest is None else change(value.manifest)
        return value if manifest is value.manifest else value.linked_as(manifest)

    return _replace_sets(value, "", relink, (), (Program, File, Dir, Manifest))


def _replace_sets(value: Any, path: str, replace: Replace, within: tuple[int, ...], kinds: tuple[type, ...]) -> Any:
    if isinstance(value, kinds):
        return replace(value, path)
    if id(value) in within or len(within) >= MAX_DEPTH:
        return value  # no argument contains itself, and such a result is refused when it is stored
    within = (*within, id(value))
    made = {
        key: new
        for key, old, place in _items(value, path)
        if (new := _replace_sets(old, place, replace, within, kinds)) is not old
    }
    return _with(value, made) if made else value


def _items(value: Any, path: str) -> Iterator[tuple[Any, Any, str]]:
    """What a container holds: key or attribute, item and its path."""
    kind = type(value)
    if kind in _MAPPINGS:
        for key in value:
            yield key, value[key], item_path(path, key)
    elif kind is list or isinstance(value, tuple):
        for index, item in enumerate(value):
            yield index, item, f"{path}[{index}]"
    elif kind is types.SimpleNamespace:
        for name, item in vars(value).items():
            yield name, item, item_path(path, name)
    elif not isinstance(value, type) and field_names(kind) is not None:
        for name, item in _attributes(value).items():
            yield name, item, f"{path}.{name}"


def short_texts(value: Any) -> Iterator[str]:
    """The texts in a result that may be paths: in containers and records, keys among them. Longer ones, which may be
    programs, name paths where they come from."""
    pending, remaining = [value], _MOST_ITEMS
    while pending and remaining:
        remaining -= 1
        each = pending.pop()
        if isinstance(each, str | bytes):
            text = os.fsdecode(each)
            if len(text) <= _LONGEST:
                yield text
        elif type(each) in (set, frozenset):
            pending.extend(each)
        elif type(each) not in _NO_TEXT:
            for key, item, _ in _items(each, ""):
                pending += (key, item)


def _attributes(value: Any) -> dict[str, Any]:
    return {**attributes(value), **present_fields(value, field_names(type(value)) or ())}


def _with(value: Any, made: dict[Any, Any]) -> Any:
    """The same container with these items replaced."""
    kind = type(value)
    if kind is collections.defaultdict:
        return collections.defaultdict(value.default_factory, {**value, **made})
    if kind is types.MappingProxyType:
        return types.MappingProxyType({**value, **made})
    if kind in _MAPPINGS:
        return kind((key, made.get(key, item)) for key, item in value.items())
    if kind is types.SimpleNamespace:
        return types.SimpleNamespace(**{**vars(value), **made})
    if kind is list or isinstance(value, tuple):
        items = [made.get(index, item) for index, item in enumerate(value)]
        if kind in {list, tuple}:
            return kind(items)
        return kind._make(items) if hasattr(kind, "_make") else kind(*items)
    if isinstance(kind, msgspec.StructMeta):
        return msgspec.structs.replace(value, **made)
    # Not by calling the class: fields may be left out of __init__, and __post_init__ may do more than once is meant.
    again = object.__new__(kind)
    for name, item in {**_attributes(value), **made}.items():
        object.__setattr__(again, name, item)
    return again


def callers_weights(result: object, arguments: Mapping[str, WeightSet]) -> Any:
    """``result`` with weight sets that came from the arguments given back as the caller's own, unguarded.

    arguments: the caller's weight sets by argument path.
    """

    def back(weights: WeightSet, _path: str) -> WeightSet:
        whole = weights.whole_origin()
        if whole is not None and whole in arguments:
            return arguments[whole]
        return weights.unguard(arguments)

    return replace_weights(result, "result", back)
