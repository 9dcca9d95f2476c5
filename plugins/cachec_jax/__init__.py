"""cachec for JAX: programs with weights by name, JAX's live settings in keys, ``jax.Array`` as argument and result.

Importing this package does not import JAX.
"""

from __future__ import annotations

from cachec_jax.lowering import fold, to_stablehlo
from cachec_jax.plugin import JaxPlugin

__all__ = ["JaxPlugin", "fold", "plugin", "to_stablehlo"]

#: The object behind the entry point ``jax`` of the group ``cachec.plugins``.
plugin = JaxPlugin()
