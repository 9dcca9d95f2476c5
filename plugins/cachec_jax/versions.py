"""The releases of JAX that this package was tried with. The module imports nothing else, so that ``install`` is
fast."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Distribution -> versions, as of ``Plugin.tried_releases``.
TRIED_RELEASES: Mapping[str, str] = MappingProxyType({"jax": ">=0.6,<0.11", "jaxlib": ">=0.6,<0.11"})
