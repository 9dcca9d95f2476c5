"""The action of ``CACHEC_INSTALL=jax`` after the import of JAX: see ``cachec_startup``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType

from cachec_jax.persistent_cache import install

#: JAX's variable for the limit.
_VARIABLE = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def _install() -> None:
    """Store every program, unless the user set JAX's limit: users of ``CACHEC_INSTALL`` do not know that limit."""
    install(min_compile_time=None if _VARIABLE in os.environ else 0)


#: Module -> the action after its import.
ACTIONS: Mapping[str, Callable[[], object]] = MappingProxyType({"jax": _install})
