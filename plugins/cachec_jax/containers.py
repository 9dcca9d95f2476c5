"""Nodes of trees that are registered with JAX: dataclasses, modules of Flax and Equinox, states of optimisers.

This module does not import JAX: if the process has not imported it, no node is registered.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from cachec.weights.pytree import Container


def container(value: Any) -> Container | None:
    """Return a node of a tree, flattened by one level; None for a leaf."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "jit"):  # the latter: while another thread imports it
        return None
    util = jax.tree_util
    children, structure = util.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
    node_data = structure.node_data()
    if node_data is None:
        return None

    def make(items: Sequence[Any]) -> Any:
        return util.tree_unflatten(structure, items)

    return Container(tuple((util.keystr(path), child) for path, child in children), node_data, make)
