"""How jitted functions, tree structures and pytree classes count in keys. Imports nothing of JAX."""

from __future__ import annotations

import sys
from typing import Any

#: Fields about the function's source line and its parameters, which the function's code includes.
_SOURCE_FIELDS = frozenset({"fun_sourceinfo", "fun_signature"})


def describe(value: Any) -> Any:
    """Return what counts of a value, or NotImplemented.

    ``jax.jit(f, **options)`` counts by ``f`` and the options, without its compiled programs. A structure counts by its
    text, and a class by whether it is a pytree.
    """
    kind = type(value)
    if issubclass(kind, type):
        return "pytree" if value in getattr(sys.modules.get("jax._src.tree_util"), "_registry", ()) else NotImplemented
    if kind.__name__ == "PjitFunction" and kind.__module__.startswith("jaxlib"):
        options = {name: part for name, part in value._jit_info._asdict().items() if name not in _SOURCE_FIELDS}
        return "jit", value._fun, options
    if kind.__name__ == "PyTreeDef" and kind.__module__.startswith("jaxlib"):
        return "structure", str(value)
    return NotImplemented
