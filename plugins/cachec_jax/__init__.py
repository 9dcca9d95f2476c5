"""cachec for JAX: lowered and compiled programs with weights by name; JAX's settings in keys, its values in the store.

An import of this package does not import JAX, because every process with plugins imports it. The first use of a name
imports its module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachec.base.lazy import lazily
from cachec_jax.plugin import JaxPlugin

if TYPE_CHECKING:
    from cachec_jax.ahead_of_time import aot
    from cachec_jax.closure_jit import jit
    from cachec_jax.lowering import fold, to_stablehlo
    from cachec_jax.persistent_cache import install, uninstall
    from cachec_jax.xla_compiler import compile_xla

_HOMES = {
    "cachec_jax.ahead_of_time": ("aot",),
    "cachec_jax.xla_compiler": ("compile_xla",),
    "cachec_jax.closure_jit": ("jit",),
    "cachec_jax.lowering": ("fold", "to_stablehlo"),
    "cachec_jax.persistent_cache": ("install", "uninstall"),
}

__all__ = ["JaxPlugin", "aot", "compile_xla", "fold", "install", "jit", "plugin", "to_stablehlo", "uninstall"]

#: The object behind the entry point ``jax`` of the group ``cachec.plugins``.
plugin = JaxPlugin()

__getattr__, __dir__ = lazily(globals(), _HOMES)
