"""What ``CACHEC_INSTALL=jax`` does once JAX has been imported: see ``cachec_startup``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType

from cachec_jax.persistent import install

#: JAX reads it, and leaves it where it is.
_VARIABLE = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def _install() -> None:
    """Store every program, unless the user has said which: who installs the cache so does not know JAX's limit."""
    install(min_compile_time=None if _VARIABLE in os.environ else 0)


#: Module -> what is done when it has been imported.
ACTIONS: Mapping[str, Callable[[], object]] = MappingProxyType({"jax": _install})
