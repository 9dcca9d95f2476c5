"""Compiles in which JAX's compilation cache has no part. Imports JAX.

XLA's executables for a CPU lose their code when one that was loaded is serialised: what it gives loads, and its first
call raises ``NOT_FOUND: Function ... not found``. So what is to be stored must not come from that cache.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cachec_jax.internals import cache_key, compilation_cache, config

#: What makes a key of JAX's one that nobody has: empty outside of ``afresh``.
_UNLIKE = ContextVar("cachec_jax.afresh", default="")

#: Every file of machine code that XLA makes for a CPU starts so.
_ELF = b"\x7fELF"


class _Hook:
    """What JAX adds to its keys, by the function that it has for that (``jax/_src/cache_key.py``)."""

    def __init__(self, before: Callable[[], str]) -> None:
        self._before = before

    def __call__(self) -> str:
        return self._before() + _UNLIKE.get()


@contextmanager
def afresh() -> Iterator[None]:
    """JAX's compilation cache is neither read nor written by this thread."""
    if not isinstance(cache_key.custom_hook, _Hook):
        cache_key.custom_hook = _Hook(cache_key.custom_hook)
    token = _UNLIKE.set(secrets.token_hex())
    try:
        with config.persistent_cache_min_compile_time_secs(float("inf")):
            yield
    finally:
        _UNLIKE.reset(token)


def may_lack_code(platform: str, data: bytes) -> bool:
    """Whether what XLA serialised may be of an executable that was loaded. Not known of one that needs no code."""
    if platform != "cpu" or _ELF in data or _UNLIKE.get():
        return False
    return bool(compilation_cache.is_persistent_cache_enabled())
