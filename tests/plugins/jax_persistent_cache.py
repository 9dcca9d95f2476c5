"""Helpers for tests of JAX with a cachec store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax._src import compilation_cache, core, monitoring

import cachec
from cachec.events import read_log

#: As JAX has called them since 0.7.
set_mesh = getattr(jax, "set_mesh", getattr(jax.sharding, "use_mesh", None))
new_ref = getattr(jax, "new_ref", getattr(core, "mutable_array", None))

FOLDER, SIDE_CACHES = "jax_compilation_cache_dir", "jax_persistent_cache_enable_xla_caches"


def forget_durations(listener: Callable[..., None]) -> None:
    """Undo ``jax.monitoring.register_event_duration_secs_listener``; JAX 0.6 has the second name."""
    names = ("unregister_event_duration_listener", "_unregister_event_duration_listener_by_callback")
    next(getattr(monitoring, name) for name in names if hasattr(monitoring, name))(listener)


@contextmanager
def kept_as_it_was() -> Iterator[None]:
    """JAX is as it was before, whatever is done to its cache; its errors are raised."""
    names = (FOLDER, SIDE_CACHES, "jax_persistent_cache_min_compile_time_secs", "jax_enable_compilation_cache",
             "jax_persistent_cache_min_entry_size_bytes", "jax_compilation_cache_check_contents",
             "jax_raise_persistent_cache_errors")  # fmt: skip
    before = {name: getattr(jax.config, name) for name in names if hasattr(jax.config, name)}
    made = compilation_cache.get_file_cache
    jax.config.update("jax_raise_persistent_cache_errors", True)
    try:
        yield
    finally:
        compilation_cache.get_file_cache = made
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def reasons(cache: cachec.Cache) -> list[str]:
    return [outcome.reason.value for outcome in read_log(cache.dir)]


def entries(cache: cachec.Cache) -> list[Any]:
    return list(cache.store.entries())
