"""JAX's tree structures as JSON, and back, without pickle and without running code that a store names.

A class, or a function or sentinel in static data, is stored by its name. The name is looked up in loaded modules only.
A sentinel is a global without state, in the module of its class, such as Equinox's ``MISSING``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax

from cachec.errors import PluginError, UnstorableValue, UnusableHere
from cachec_jax import internals
from cachec_jax.program_format import TreeForm


def form_of(structure: jax.tree_util.PyTreeDef) -> TreeForm:
    """Raises PluginError for static data that is neither a plain value nor a class or function with a name."""
    node_data = structure.node_data()
    if node_data is None:
        return TreeForm("leaf")
    kind, data = node_data
    if kind is type(None):
        return TreeForm("none")
    children = tuple(map(form_of, structure.children()))
    if kind in {list, tuple}:
        return TreeForm(kind.__name__, None, children)
    if kind is dict:
        return TreeForm("dict", _plain(tuple(data)), children)
    internals.check_structure(kind, data)
    return TreeForm("node", [_name(kind), _plain(data)], children)


def structure_of(form: TreeForm) -> Any:
    """Raises PluginError for an invalid form, and for a class that is not loaded or not registered with JAX."""
    if form.kind in {"leaf", "none"}:
        return jax.tree.structure(0 if form.kind == "leaf" else None)
    children = [structure_of(child) for child in form.children]
    try:
        if form.kind == "dict":
            keys = _value(form.data)
            if len(keys) != len(children):
                raise PluginError(f"a stored tree has {len(keys)} keys for {len(children)} children")
            return _make_structure((dict, list(keys)), children)
        if form.kind == "node":
            name, data = form.data
            return _make_structure((_find_loaded(name), _value(data)), children)
        return _make_structure(({"list": list, "tuple": tuple}[form.kind], None), children)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PluginError(f"a stored tree can't be made: {error}") from error


def _make_structure(data: tuple[Any, Any], children: list[Any]) -> Any:
    return internals.make_structure(data, children)


_SCALARS = frozenset({type(None), bool, int, float, str})


def _plain(value: Any) -> Any:
    """Return a value that JSON preserves: others become an object with their kind."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind in {tuple, list}:
        return {kind.__name__: [_plain(item) for item in value]}
    if kind is dict:
        return {"dict": [[_plain(key), _plain(item)] for key, item in value.items()]}
    sentinel = _sentinel_name(value)
    return {"sentinel": sentinel} if sentinel else {"name": _name(value)}


def _value(data: Any) -> Any:
    if type(data) in _SCALARS:
        return data
    if type(data) is not dict or len(data) != 1:
        raise PluginError("a stored tree has malformed static data")
    ((kind, content),) = data.items()
    make: Callable[[Any], Any] | None = _KINDS.get(kind)
    if make is None:
        raise PluginError(f"a stored tree has static data of the unknown kind {kind!r}")
    return make(content)


def _name(value: Any) -> str:
    name = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"
    if not callable(value) or _resolve_name(name) is not value:
        raise UnstorableValue(
            f"a tree with {str(value)[:80]!r} in its static data can't be stored: only plain values, and classes, "
            "functions and sentinels at the top level of a module, can; pass the leaves of jax.tree.flatten instead, "
            "and unflatten them in the function"
        )
    return name


def _find_loaded(name: Any) -> Any:
    found = _resolve_name(name) if isinstance(name, str) else None
    if not callable(found):
        raise UnusableHere(f"{str(name)[:200]!r}, of a stored tree, is not loaded; import its module first")
    return found


def _sentinel_name(value: Any) -> str:
    """The name of a global without state in the module of its class; empty for other objects."""
    kind = type(value)
    if kind.__mro__ != (kind, object) or getattr(value, "__dict__", None) or "__slots__" in vars(kind):
        return ""
    if kind is object or kind.__module__ in {"builtins", "__main__"}:
        return ""
    names = vars(sys.modules.get(kind.__module__, object))
    return next((f"{kind.__module__}:{name}" for name, each in list(names.items()) if each is value), "")


def _found_sentinel(name: Any) -> Any:
    found = _resolve_name(name) if isinstance(name, str) else None
    if _sentinel_name(found) != name:
        raise UnusableHere(f"{str(name)[:200]!r}, of a stored tree, is no sentinel here; import its module first")
    return found


def _resolve_name(name: str) -> Any:
    module, _, qualname = name.partition(":")
    place: Any = sys.modules.get(module)
    for each in qualname.split("."):
        place = getattr(place, "__dict__", {}).get(each)  # no module __getattr__ and no descriptor runs for a name
    return place


_KINDS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda items: tuple(map(_value, items)),
    "list": lambda items: list(map(_value, items)),
    "dict": lambda items: {_value(key): _value(item) for key, item in items},
    "name": _find_loaded,
    "sentinel": _found_sentinel,
}
