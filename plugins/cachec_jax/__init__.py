"""cachec for JAX: programs with weights by name, also compiled; JAX's live settings in keys, JAX's values in the store.

Importing this package does not import JAX.
"""

from __future__ import annotations

from cachec_jax.compiling import compile_xla
from cachec_jax.jitting import jit
from cachec_jax.lowering import fold, to_stablehlo
from cachec_jax.persistent import install, uninstall
from cachec_jax.plugin import JaxPlugin

__all__ = ["JaxPlugin", "compile_xla", "fold", "install", "jit", "plugin", "to_stablehlo", "uninstall"]

#: The object behind the entry point ``jax`` of the group ``cachec.plugins``.
plugin = JaxPlugin()
