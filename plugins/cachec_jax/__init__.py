"""cachec for JAX: programs with weights by name, also compiled; JAX's live settings in keys, JAX's values in the store.

Importing this package does not import JAX. What is here is imported when it is first used: every process that looks
for plugins imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachec_jax.plugin import JaxPlugin

if TYPE_CHECKING:
    from cachec_jax.compiling import compile_xla
    from cachec_jax.jitting import jit
    from cachec_jax.lowering import fold, to_stablehlo
    from cachec_jax.persistent import install, uninstall

_HOMES = {
    "compile_xla": "cachec_jax.compiling",
    "fold": "cachec_jax.lowering",
    "install": "cachec_jax.persistent",
    "jit": "cachec_jax.jitting",
    "to_stablehlo": "cachec_jax.lowering",
    "uninstall": "cachec_jax.persistent",
}

__all__ = ["JaxPlugin", "compile_xla", "fold", "install", "jit", "plugin", "to_stablehlo", "uninstall"]

#: The object behind the entry point ``jax`` of the group ``cachec.plugins``.
plugin = JaxPlugin()


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cachec_jax' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value  # the next look-up finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
