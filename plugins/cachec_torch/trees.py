"""Trees of inputs and outputs, as torch's pytree has them, in a form that needs no torch."""

from __future__ import annotations

import sys
from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from cachec.errors import UsageError

_KEYS = frozenset({str, int, bool, type(None)})


class SpecNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step of a tree. name: the class of a named tuple (``module:qualname``). keys: of a dict; its field names."""

    kind: Literal["leaf", "tuple", "list", "dict", "ordered", "named"]
    keys: tuple[Any, ...] = ()
    children: tuple[SpecNode, ...] = ()
    name: str = ""


def node_of(spec: Any) -> SpecNode:
    """Of a ``TreeSpec`` of torch's. Raises LookupError, in words, where only torch can build it."""
    if spec.is_leaf():
        return SpecNode("leaf")
    kind = spec.type
    children = tuple(map(node_of, children_of(spec)))
    if kind in {tuple, list}:
        return SpecNode(kind.__name__, (), children)
    if kind in {dict, OrderedDict}:
        keys = tuple(spec.context)
        if all(type(key) in _KEYS for key in keys):
            return SpecNode("dict" if kind is dict else "ordered", keys, children)
        raise LookupError(f"a dict with keys such as {keys[0]!r}")
    if kind is namedtuple:
        cls = spec.context
        return SpecNode("named", cls._fields, children, f"{cls.__module__}:{cls.__qualname__}")
    raise LookupError(f"a {kind.__module__}.{kind.__qualname__}")


def children_of(spec: Any) -> Sequence[Any]:
    """The trees below the root of a ``TreeSpec`` of torch's."""
    below: Sequence[Any] = spec.children() if hasattr(spec, "children") else spec.children_specs  # of earlier releases
    return below


def leaves_of(node: SpecNode, value: Any, where: str) -> Iterator[Any]:
    """The leaves of a value that has this tree, in order. Raises UsageError where it has another one."""
    if node.kind == "leaf":
        yield value
        return
    if node.kind in {"dict", "ordered"}:
        if not isinstance(value, dict) or value.keys() != set(node.keys):
            raise UsageError(f"{where} expected a dict with keys {list(node.keys)}, found {_brief(value)}")
        items = [(f"{where}[{key!r}]", value[key]) for key in node.keys]
    else:
        kind = list if node.kind == "list" else tuple
        if not isinstance(value, kind) or len(value) != len(node.children):
            raise UsageError(f"{where} expected a {kind.__name__} of {len(node.children)}, found {_brief(value)}")
        items = [(f"{where}[{number}]", item) for number, item in enumerate(value)]
    for child, (place, item) in zip(node.children, items, strict=True):
        yield from leaves_of(child, item, place)


def built(node: SpecNode, leaves: Iterator[Any]) -> Any:
    """The tree with these leaves. A named tuple is of its class where that is loaded, else of one like it."""
    if node.kind == "leaf":
        return next(leaves)
    items = [built(child, leaves) for child in node.children]
    if node.kind == "list":
        return items
    if node.kind == "tuple":
        return tuple(items)
    if node.kind == "named":
        return _named(node.name, node.keys)(*items)
    pairs = zip(node.keys, items, strict=True)
    return dict(pairs) if node.kind == "dict" else OrderedDict(pairs)


def _named(name: str, fields: Sequence[str]) -> Any:
    module, _, qualname = name.partition(":")
    place: Any = sys.modules.get(module)
    for each in qualname.split("."):
        place = getattr(place, "__dict__", {}).get(each)
    if isinstance(place, type) and issubclass(place, tuple) and getattr(place, "_fields", ()) == tuple(fields):
        return place
    return namedtuple(qualname.rpartition(".")[2], fields)


def _brief(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, dict | list | tuple) else ""
    return type(value).__name__ + size
