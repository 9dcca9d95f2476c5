"""``install`` and ``uninstall``: they set Triton's cache manager for this process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cachec.base.distributions import Distributions
from cachec.programs.supported_versions import GONE, step_aside, why_unsupported
from cachec_triton.plugin import TritonPlugin

if TYPE_CHECKING:
    from cachec.cache import Cache


def install(cache: Cache | None, *, strict: bool) -> Cache:
    """See ``cachec_triton.install``."""
    from cachec.cache import Cache

    chosen = Cache() if cache is None else cache
    reason = why_unsupported(TritonPlugin(), Distributions(), chosen.settings.store_folder) or _why_incompatible()
    if reason:
        step_aside(f"cachec_triton.install: {reason}; triton keeps its own cache", strict=strict)
        return chosen
    from triton import knobs

    from cachec_triton.cache_manager import NAME, StoredKernels, cache_of, manager_for

    there = knobs.cache.manager_class
    if isinstance(there, type) and issubclass(there, StoredKernels) and cache is None:
        return cache_of(there)
    manager = manager_for(cache)
    if cache_of(manager).replaces(NAME):
        knobs.cache.manager_class = manager
    return cache_of(manager)


def uninstall() -> None:
    """See ``cachec_triton.uninstall``."""
    knobs = sys.modules.get("triton.knobs")
    there = None if knobs is None else knobs.cache.__dict__.get("manager_class")
    if knobs is not None and isinstance(there, type) and hasattr(there, "cachec_cache"):
        knobs.cache.manager_class = knobs.env


def _why_incompatible() -> str:
    """Return which needed part of this triton is missing; empty if none."""
    try:
        from triton import knobs
        from triton.runtime.cache import FileCacheManager

        used = (knobs.env, knobs.cache.manager_class, FileCacheManager.put_group, FileCacheManager.get_group)
        del used
    except GONE as error:
        return f"{type(error).__name__}: {error}"
    return ""
