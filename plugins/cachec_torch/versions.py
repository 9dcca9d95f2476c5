"""The releases of torch that this package was tried with. A module of its own: it imports nothing beside."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Distribution -> versions, as of ``Plugin.tried_releases``.
TRIED_RELEASES: Mapping[str, str] = MappingProxyType({"torch": ">=2.13,<2.14"})
