"""What is remembered: small tables that drop the oldest value."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BoundedDict(Generic[T]):
    """A table of at most ``limit`` values that drops the oldest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[object, T] = {}
        self._lock = threading.Lock()
        #: The value of a key, or None. The dict's own method: a hit asks twice.
        self.get: Callable[[object], T | None] = self._values.get

    def drop(self, key: object) -> None:
        """Forget the value of ``key``, if there is one."""
        self._values.pop(key, None)

    def put(self, key: object, value: T) -> None:
        """Remember ``value`` as the newest."""
        with self._lock:
            self._values.pop(key, None)
            while len(self._values) >= self._limit:
                del self._values[next(iter(self._values))]
            self._values[key] = value
