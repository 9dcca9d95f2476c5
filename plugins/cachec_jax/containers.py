"""What is registered with JAX as a node of a tree: dataclasses, modules of Flax and Equinox, states of optimisers.

Does not import JAX: where it is not imported, nothing is registered.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from cachec.weights.pytree import Container


def container(value: Any) -> Container | None:
    """A node of a tree taken apart, one step deep; None for a leaf."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "jit"):  # the latter: while another thread imports it
        return None
    util = jax.tree_util
    children, structure = util.tree_flatten_with_path(value, is_leaf=lambda held: held is not value)
    held = structure.node_data()
    if held is None:
        return None

    def make(items: Sequence[Any]) -> Any:
        return util.tree_unflatten(structure, items)

    return Container(tuple((util.keystr(path), child) for path, child in children), held, make)
