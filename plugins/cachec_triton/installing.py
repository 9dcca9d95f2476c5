"""``cachec_triton.install``: which of Triton's cache managers is in force."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from cachec.errors import UnsupportedVersion
from cachec.programs.supported import GONE, compare
from cachec_triton.versions import TRIED_RELEASES

if TYPE_CHECKING:
    from cachec.cache import Cache


def install(cache: Cache | None) -> Cache:
    """See ``cachec_triton.install``."""
    knobs = _checked()
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


def _checked() -> Any:
    """Triton's settings. Raises UnsupportedVersion."""
    known = ", ".join(name + versions for name, versions in TRIED_RELEASES.items())
    try:
        import triton
    except ImportError as error:
        raise UnsupportedVersion(f"cachec_triton.install needs {known}, found none: {error}") from error
    found = f"triton {triton.__version__}"
    if compare(triton.__version__, TRIED_RELEASES["triton"]):
        raise UnsupportedVersion(f"cachec_triton.install needs {known}, found {found}; triton keeps its own cache")
    try:
        from triton import knobs
        from triton.runtime.cache import FileCacheManager

        used = (knobs.env, knobs.cache.manager_class, FileCacheManager.put_group, FileCacheManager.get_group)
        del used
    except GONE as error:
        raise UnsupportedVersion(
            f"cachec_triton.install knows {known}, and met in {found} {type(error).__name__}: {error}; "
            "triton keeps its own cache"
        ) from error
    return knobs
