"""cachec for JAX: programs with weights by name, also compiled; JAX's live settings in keys, JAX's values in the store.

Importing this package does not import JAX. What is here is imported when it is first used: every process that looks
for plugins imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachec.base.lazy import lazily
from cachec_jax.plugin import JaxPlugin

if TYPE_CHECKING:
    from cachec_jax.ahead_of_time import aot
    from cachec_jax.compiling import compile_xla
    from cachec_jax.jitting import jit
    from cachec_jax.lowering import fold, to_stablehlo
    from cachec_jax.persistent import install, uninstall

_HOMES = {
    "cachec_jax.ahead_of_time": ("aot",),
    "cachec_jax.compiling": ("compile_xla",),
    "cachec_jax.jitting": ("jit",),
    "cachec_jax.lowering": ("fold", "to_stablehlo"),
    "cachec_jax.persistent": ("install", "uninstall"),
}

__all__ = ["JaxPlugin", "aot", "compile_xla", "fold", "install", "jit", "plugin", "to_stablehlo", "uninstall"]

#: The object behind the entry point ``jax`` of the group ``cachec.plugins``.
plugin = JaxPlugin()

__getattr__, __dir__ = lazily(globals(), _HOMES)
