"""How weights hang in a tree: mappings, lists, tuples, named tuples, and containers that other packages know.

A package offers what its library takes for containers through the entry-point group ``cachec.containers``::

    [project.entry-points."cachec.containers"]
    jax = "cachec_jax.containers:container"

The object is a function of a value: a ``Container``, or None for a leaf. It is asked of what is no container here.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

from cachec.base.display_text import nearest
from cachec.errors import UnknownWeight, UsageError, WeightError
from cachec.model import WeightSpec

T = TypeVar("T")

#: The entry-point group under which a package offers containers.
GROUP = "cachec.containers"

#: Nesting beyond this is a mistake, or would exhaust Python's own stack.
_MAX_DEPTH = 100


class Container(NamedTuple):
    """A container of another library, taken apart."""

    #: Each by what leads to it in a path, as ``['name']``, ``[0]`` or ``.name``.
    children: tuple[tuple[str, Any], ...]
    #: What it is beside them (class, static fields); counts in keys, by value.
    held: Any
    #: The container again, from other children in this order.
    make: Callable[[Sequence[Any]], Any]


class _Leaf(NamedTuple):
    name: str


class Nesting:
    """The containers of a tree, with names of weights for its leaves. Immutable."""

    __slots__ = ("_top",)

    def __init__(self, top: Any) -> None:
        """Use ``taken_apart``."""
        self._top = top

    def build(self, leaf: Callable[[str], Any]) -> Any:
        """The tree, made anew, with ``leaf(name)`` for each weight."""
        return _map_leaves(self._top, lambda node: leaf(node.name))

    def rename(self, names: Mapping[str, str]) -> Nesting:
        """The same with other names for the weights."""
        return Nesting(_map_leaves(self._top, lambda node: _Leaf(names[node.name]), template=True))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the weights, each as often as it hangs in the tree."""
        found: list[str] = []
        self.build(found.append)
        return tuple(found)

    @property
    def is_plain(self) -> bool:
        """Whether all containers are dicts, lists and tuples."""
        return _is_plain(self._top)

    @property
    def form(self) -> Any:
        """What counts of it in a key: built-in containers, names, classes and static data."""
        return _form(self._top)


def taken_apart(tree: Any) -> tuple[Nesting, dict[str, Any]]:
    """A tree's containers, and its leaves by their paths, as ``jax.tree_util.keystr`` writes them.

    None is no leaf. Raises UsageError for a tree that is a leaf, contains itself, has keys that can't be sorted, or two
    leaves of one path.
    """
    leaves: dict[str, Any] = {}
    top = _take_apart(tree, "", leaves, _MAX_DEPTH)
    if isinstance(top, _Leaf):
        raise UsageError(
            f"expected a tree of weights (a dict, a list, a dataclass registered with JAX), found {type(tree).__name__}"
        )
    return Nesting(top), leaves


def _take_apart(value: Any, path: str, leaves: dict[str, Any], depth: int) -> Any:
    if not depth:
        raise UsageError(f"the tree contains itself at {path[:80]}, or is nested over {_MAX_DEPTH} deep")
    kind = type(value)
    if value is None:
        return None
    if kind is dict:
        return {key: _take_apart(value[key], f"{path}[{key!r}]", leaves, depth - 1) for key in _sort_keys(value, path)}
    if kind is list or kind is tuple:
        return kind(_take_apart(item, f"{path}[{index}]", leaves, depth - 1) for index, item in enumerate(value))
    container = _mapping(value, path) or _container(value)
    if container is not None:
        children = ((key, _take_apart(child, path + key, leaves, depth - 1)) for key, child in container.children)
        return container._replace(children=tuple(children))
    if _is_named_tuple(value):
        fields = zip(value._fields, value, strict=True)
        return kind._make(_take_apart(item, f"{path}.{field}", leaves, depth - 1) for field, item in fields)
    if path in leaves:
        raise UsageError(f"two leaves of the tree have the path {path!r}")
    leaves[path] = value
    return _Leaf(path)


def _sort_keys(value: dict[Any, Any], path: str) -> list[Any]:
    """The keys as JAX has them: the order of insertion does not reach a function."""
    try:
        return sorted(value)
    except TypeError as error:
        where = path or "the top"
        raise UsageError(f"the keys of the {type(value).__name__} at {where} can't be sorted: {error}") from error


def _mapping(value: Any, path: str) -> Container | None:
    """Mappings of Python's library that JAX has for nodes, as it has them: whether it is imported changes nothing."""
    node: Any
    make: Callable[[Iterable[tuple[Any, Any]]], Any]
    if type(value) is OrderedDict:
        keys, make = tuple(value), OrderedDict
        node = (OrderedDict, keys)
    elif type(value) is defaultdict:
        keys, make = tuple(_sort_keys(value, path)), partial(defaultdict, value.default_factory)
        node = (defaultdict, (value.default_factory, keys))
    else:
        return None
    children = tuple((f"[{key!r}]", value[key]) for key in keys)
    return Container(children, node, lambda items: make(zip(keys, items, strict=True)))


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _container(value: Any) -> Container | None:
    return next((found for take in _container_hooks() if (found := take(value)) is not None), None)


@cache
def _container_hooks() -> tuple[Callable[[Any], Container | None], ...]:
    """Looked for once a process."""
    from cachec.base.distributions import Distributions
    from cachec.base.entry_points import load_object

    offered = Distributions().plugin_entry_points(GROUP)
    return tuple(
        load_object(f"the containers {name!r}", offered[name], "container", object) for name in sorted(offered)
    )


def _map_leaves(node: Any, leaf: Callable[[_Leaf], Any], *, template: bool = False) -> Any:
    """template: leave the containers of other libraries taken apart."""
    if node is None:
        return None
    if isinstance(node, _Leaf):
        return leaf(node)
    if type(node) is dict:
        return {key: _map_leaves(item, leaf, template=template) for key, item in node.items()}
    if isinstance(node, Container):
        children = [(key, _map_leaves(child, leaf, template=template)) for key, child in node.children]
        return node._replace(children=tuple(children)) if template else node.make([child for _, child in children])
    items = [_map_leaves(item, leaf, template=template) for item in node]
    return type(node)._make(items) if _is_named_tuple(node) else type(node)(items)


def _form(node: Any) -> Any:
    if isinstance(node, _Leaf):
        return node.name
    if type(node) is dict:
        return {key: _form(item) for key, item in node.items()}
    if isinstance(node, Container):
        return (node.held, tuple((key, _form(child)) for key, child in node.children))
    if node is None:
        return None
    items = [_form(item) for item in node]
    return type(node)._make(items) if _is_named_tuple(node) else type(node)(items)


def _is_plain(node: Any) -> bool:
    if node is None or isinstance(node, _Leaf):
        return True
    return type(node) in {dict, list, tuple} and all(map(_is_plain, node.values() if type(node) is dict else node))


def named_like(
    tree: Any, specs: Mapping[str, WeightSpec], names: Mapping[str, str] | Callable[[str], str] | None
) -> Nesting:
    """The containers of ``tree`` for weights that have names of their own; see ``WeightSet.tree``."""
    nesting, leaves = taken_apart(tree)
    spelt = _choose_names(tuple(leaves), specs, names)
    for path, leaf in leaves.items():
        spec = specs[spelt[path]]
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        wanted = (spec.shape if shape is None else tuple(shape), spec.dtype if dtype is None else str(dtype))
        if wanted != (spec.shape, spec.dtype):
            raise WeightError(
                f"weight {spec.name!r} for {path}: expected {wanted[1]} {list(wanted[0])}, "
                f"found {spec.dtype} {list(spec.shape)}"
            )
    return nesting.rename(spelt)


def _choose_names(
    paths: Sequence[str], specs: Mapping[str, WeightSpec], names: Mapping[str, str] | Callable[[str], str] | None
) -> dict[str, str]:
    """The name of each path's weight."""
    if names is None:
        spellings = [{path: path for path in paths}, {path: ".".join(_steps(path)) for path in paths}]
        fitting = next((each for each in spellings if all(name in specs for name in each.values())), None)
        if fitting is not None:
            return fitting
        best = max(spellings, key=lambda each: sum(name in specs for name in each.values()))
        path, name = next((path, name) for path, name in best.items() if name not in specs)
        raise _unknown(name, path, specs)
    spelt = {}
    for path in paths:
        name = names(path) if callable(names) else names.get(path, path)
        if name not in specs:
            raise _unknown(name, path, specs)
        spelt[path] = name
    return spelt


def _unknown(name: str, path: str, specs: Mapping[str, WeightSpec]) -> UnknownWeight:
    near = nearest(name, specs)
    hint = f", did you mean {near!r}?" if near else ""
    return UnknownWeight(
        f"no weight {name!r} among {len(specs)} for {path} of the tree{hint}; say names=, a mapping or a function from "
        "such a path to the weight's name"
    )


def _steps(path: str) -> Iterator[str]:
    """The keys of a path without its punctuation: ``['layers'][0].w`` is layers, 0, w."""
    import re

    for quoted, index, attribute in re.findall(r"\['((?:[^'\\]|\\.)*)'\]|\[([^\]]*)\]|\.([^.\[]*)", path):
        yield quoted or index or attribute
