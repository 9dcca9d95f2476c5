"""Pins: entries that neither ``gc`` nor an invalidation takes, by key or by tag.

    store:pin:<namespace>:key:<key>     Pin
    store:pin:<namespace>:tag:<tag>     Pin: every entry with that tag, those to come too

The namespace is written as in the other rows (store.py). A pin of a key outlives its entry: made again, it is pinned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from cachec.errors import UsageError
from cachec.model import STORE_VERSION, Digest
from cachec.store.index import Index
from cachec.store.row_codec import pack

_TAG = "pin"
_PREFIX = "store:pin:"

Kind = Literal["key", "tag"]


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """created: Unix time."""

    version: int
    created: float


class PinTable:
    """The pins of every namespace, as they were read."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def __len__(self) -> int:
        return len(self._names)

    def holds(self, name: str, tags: Iterable[str]) -> bool:
        """Whether an entry is pinned. name: ``<namespace>:<key>``; tags: its own."""
        namespace, _, key = name.rpartition(":")
        return f"{namespace}:key:{key}" in self._names or any(f"{namespace}:tag:{tag}" in self._names for tag in tags)

    def of(self, namespace: str, kind: Kind) -> list[str]:
        """The pinned keys, or tags, of one namespace (``Store.quoted``), sorted."""
        prefix = f"{namespace}{kind}:"
        return sorted(name.removeprefix(prefix) for name in self._names if name.startswith(prefix))


class Pins:
    """Sets and removes the pins of one namespace."""

    def __init__(self, index: Index, namespace: str, clock: Callable[[], float] = time.time) -> None:
        """namespace: as ``Store.quoted`` writes it, with its colon."""
        self._index = index
        self._namespace = namespace
        self._clock = clock

    def read(self) -> PinTable:
        """All pins, of every namespace. A damaged one still pins: its name says what. Raises StoreFault."""
        return PinTable(name.removeprefix(_PREFIX) for name in self._index.keys(prefix=_PREFIX))

    def add(self, kind: Kind, what: Digest | str) -> None:
        """Pin a key (64 characters) or a tag. Raises UsageError for an empty one, StoreFault."""
        if not what:
            raise UsageError(f"a pin expected a {kind}, found an empty one")
        pin = Pin(version=STORE_VERSION, created=self._clock())
        self._index.write(self._name(kind, what), pack(pin, STORE_VERSION), _TAG)

    def remove(self, kind: Kind, what: Digest | str) -> bool:
        """Remove a pin; whether there was one. Raises StoreFault."""
        return self._index.delete(self._name(kind, what))

    def _name(self, kind: Kind, what: str) -> str:
        return f"{_PREFIX}{self._namespace}{kind}:{what}"
