"""The releases of JAX that this package was tried with. A module of its own: ``install`` imports nothing beside."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Distribution -> versions, as of ``Plugin.tried_releases``.
TRIED_RELEASES: Mapping[str, str] = MappingProxyType({"jax": ">=0.10.2,<0.11", "jaxlib": ">=0.10.2,<0.11"})
