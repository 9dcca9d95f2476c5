"""The content of a value, path by path, so that a difference is reported where it is; never hashed.

Bounded, in words, and kept beside an entry: what is behind a name like a secret's is left out, and of arrays only type
and shape are said (their content is a part of its own).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from cachec.base.display_text import is_secret
from cachec.base.instances import attribute, field_names
from cachec.key.describe import MAPPINGS, describe, item_path

#: Leaves of one value, and how deep they may lie.
MAX_LEAVES = 256
_DEPTH = 20

#: Differences that a person is shown of one value.
_SHOWN = 4

#: Paths in a value, each with what is there in words.
Leaves = tuple[tuple[str, str], ...]


def leaves(value: object, path: str, most: int = MAX_LEAVES) -> Leaves:
    """The leaves of a container, the first ``most``; none of what is no container."""
    items = _items(value, path)
    if items is None or next(items, None) is None:
        return ()
    return tuple(itertools.islice(_walk(value, path, path, _DEPTH), most))


def leaf_difference(old: Leaves, new: Leaves) -> str:
    """The leaves that differ, in words; empty where none does, or either value has none."""
    if not old or not new:
        return ""
    before, after = dict(old), dict(new)
    changed = [f"{path}: {before[path]} -> {text}" for path, text in new if before.get(path, text) != text]
    added = [f"{path} added: {text}" for path, text in new if not _is_there(path, before)]
    removed = [f"{path} removed, was {text}" for path, text in old if not _is_there(path, after)]
    words = [*changed, *added, *removed]
    more = f"; and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return "; ".join(words[:_SHOWN]) + more


def _is_there(path: str, leaves: Mapping[str, str]) -> bool:
    """Whether a leaf is among others, or was an empty container, and is none any more."""
    return path in leaves or any(each.startswith((f"{path}.", f"{path}[")) for each in leaves)


def _walk(value: Any, path: str, name: str, depth: int) -> Iterator[tuple[str, str]]:
    items = _items(value, path) if depth else None
    if items is None:
        yield path, describe(value, name=name)
        return
    empty = True
    for where, key, item in items:
        empty = False
        yield from _walk(item, where, name if not key or is_secret(name) else key, depth - 1)
    if empty:
        yield path, describe(value)


def _items(value: Any, path: str) -> Iterator[tuple[str, str, Any]] | None:
    """Path, name and value of each item of a container and each attribute of an object; None for any other value."""
    cls = type(value)
    if cls in MAPPINGS:
        return ((item_path(path, key), str(key) if type(key) is str else "", item) for key, item in value.items())
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return ((f"{path}.{field}", field, attribute(value, field)) for field in cls._fields)
    if cls in {list, tuple}:
        return ((f"{path}[{index}]", "", item) for index, item in enumerate(value))
    names = None if isinstance(value, type) else field_names(cls)
    if names is not None:
        return ((f"{path}.{field}", field, attribute(value, field)) for field in names)
    state = attribute(value, "__dict__")
    if type(state) is not dict or callable(value) or isinstance(value, ModuleType):
        return None
    return ((f"{path}.{name}", name, item) for name, item in state.items())
