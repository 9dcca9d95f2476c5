"""``cachec_triton.install``: which of Triton's cache managers is in force."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cachec.base.distributions import Distributions
from cachec.programs.supported import GONE, step_aside, why_unsupported
from cachec_triton.plugin import TritonPlugin

if TYPE_CHECKING:
    from cachec.cache import Cache


def install(cache: Cache | None, *, strict: bool) -> Cache:
    """See ``cachec_triton.install``."""
    from cachec.cache import Cache

    chosen = Cache() if cache is None else cache
    reason = why_unsupported(TritonPlugin(), Distributions(), chosen.settings.store_folder) or _why_moved()
    if reason:
        step_aside(f"cachec_triton.install: {reason}; triton keeps its own cache", strict=strict)
        return chosen
    from triton import knobs

    from cachec_triton.persistent import NAME, StoredKernels, opened, storing_in

    there = knobs.cache.manager_class
    if isinstance(there, type) and issubclass(there, StoredKernels) and cache is None:
        return opened(there)
    manager = storing_in(cache)
    if opened(manager).replaces(NAME):
        knobs.cache.manager_class = manager
    return opened(manager)


def uninstall() -> None:
    """See ``cachec_triton.uninstall``."""
    knobs = sys.modules.get("triton.knobs")
    there = None if knobs is None else knobs.cache.__dict__.get("manager_class")
    if knobs is not None and isinstance(there, type) and hasattr(there, "cachec_cache"):
        knobs.cache.manager_class = knobs.env


def _why_moved() -> str:
    """What of triton that is used here is gone, in words; empty where all is there."""
    try:
        from triton import knobs
        from triton.runtime.cache import FileCacheManager

        used = (knobs.env, knobs.cache.manager_class, FileCacheManager.put_group, FileCacheManager.get_group)
        del used
    except GONE as error:
        return f"{type(error).__name__}: {error}"
    return ""
