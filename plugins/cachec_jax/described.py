"""What stands for a jitted function and a tree's structure that a global holds. Imports nothing of JAX."""

from __future__ import annotations

import sys
from typing import Any

#: Where the function is defined, and what its parameters are called: its code says the latter too.
_OF_TEXT = frozenset({"fun_sourceinfo", "fun_signature"})


def describe(value: Any) -> Any:
    """Of ``jax.jit(f, **options)``, ``f`` and the options, not what was compiled for it; of a structure its text; of a
    class whether it is a pytree."""
    kind = type(value)
    if issubclass(kind, type):
        return "pytree" if value in getattr(sys.modules.get("jax._src.tree_util"), "_registry", ()) else NotImplemented
    if kind.__name__ == "PjitFunction" and kind.__module__.startswith("jaxlib"):
        options = {name: part for name, part in value._jit_info._asdict().items() if name not in _OF_TEXT}
        return "jit", value._fun, options
    if kind.__name__ == "PyTreeDef" and kind.__module__.startswith("jaxlib"):
        return "structure", str(value)
    return NotImplemented
