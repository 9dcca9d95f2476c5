"""Whether a stage runs here without the cache, so that the end of the use of its files is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_uncached: ContextVar[bool] = ContextVar("cachec_uncached", default=False)


def is_uncached() -> bool:
    """Whether this context is in a stage that runs without the cache."""
    return _is_uncached.get()


@contextmanager
def without_cache() -> Iterator[None]:
    """A stage runs without the cache in the body."""
    token = _is_uncached.set(True)
    try:
        yield
    finally:
        _is_uncached.reset(token)
