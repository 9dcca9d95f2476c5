"""Compilation without JAX's compilation cache, whose executables can't be stored again. Imports JAX.

An executable of XLA for a CPU loses its code if it is loaded and then serialised. The bytes load, but the first call
raises ``NOT_FOUND: Function ... not found``. So an executable that is to be stored must not come from JAX's cache.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cachec_jax.internals import cache_key, compilation_cache, config

#: A random suffix that makes JAX's key one that no cache has; empty outside of ``bypass_jax_cache``.
_KEY_SUFFIX = ContextVar("cachec_jax.cache_bypass", default="")

#: The start of each file of machine code that XLA makes for a CPU.
_ELF = b"\x7fELF"


class _Hook:
    """JAX's hook for additions to its keys (``jax/_src/cache_key.py``), with the suffix of this module."""

    def __init__(self, before: Callable[[], str]) -> None:
        self._before = before

    def __call__(self) -> str:
        return self._before() + _KEY_SUFFIX.get()


@contextmanager
def bypass_jax_cache() -> Iterator[None]:
    """Keep this thread from reading or writing JAX's compilation cache."""
    if not isinstance(cache_key.custom_hook, _Hook):
        cache_key.custom_hook = _Hook(cache_key.custom_hook)
    token = _KEY_SUFFIX.set(secrets.token_hex())
    try:
        with config.persistent_cache_min_compile_time_secs(float("inf")):
            yield
    finally:
        _KEY_SUFFIX.reset(token)


def may_lack_code(platform: str, data: bytes) -> bool:
    """Whether ``data`` may be from an executable that XLA loaded, so that it has no code. Never of one without code."""
    if platform != "cpu" or _ELF in data or _KEY_SUFFIX.get():
        return False
    return bool(compilation_cache.is_persistent_cache_enabled())
