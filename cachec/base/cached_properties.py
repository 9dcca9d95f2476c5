"""What cached properties (``functools.cached_property``) hold in an instance, as far as a key is concerned."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import msgspec

#: The names of attributes that do not count, by the ``id`` of their instance.
Without = Mapping[int, frozenset[str]]

NOTHING: Without = MappingProxyType({})


class UnfilledProperties(msgspec.Struct, frozen=True):
    """An instance, and its cached properties that had no value when they were checked."""

    value: object
    names: frozenset[str]

    def filled_names(self) -> frozenset[str]:
        """Those of the names that hold something by now."""
        return self.names & getattr(self.value, "__dict__", {}).keys()


class EncounteredProperties:
    """What a key met on the way. without: what is to be left out of it."""

    def __init__(self, without: Without) -> None:
        self.without = without
        self.unfilled: list[UnfilledProperties] = []


_encountered: ContextVar[EncounteredProperties | None] = ContextVar("cachec_fills", default=None)


@contextmanager
def collect_encountered(without: Without | None = None) -> Iterator[EncounteredProperties]:
    """Collect the properties of this block. without: None for the exclusions of the surrounding block."""
    encountered = EncounteredProperties(excluded_properties() if without is None else without)
    token = _encountered.set(encountered)
    try:
        yield encountered
    finally:
        _encountered.reset(token)


def excluded_properties() -> Without:
    """What the surrounding block leaves out."""
    encountered = _encountered.get()
    return NOTHING if encountered is None else encountered.without


def note(unfilled: Iterable[UnfilledProperties]) -> None:
    """Let the surrounding block have met these."""
    encountered = _encountered.get()
    if encountered is not None:
        encountered.unfilled += unfilled


def filled_since(unfilled: list[UnfilledProperties]) -> Without:
    """What has been filled since, by instance."""
    found: dict[int, frozenset[str]] = {}
    for each in unfilled:
        if names := each.filled_names():
            found[id(each.value)] = found.get(id(each.value), frozenset()) | names
    return found


def counting(value: object, attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an instance that count: all but those that the surrounding block leaves out."""
    encountered = _encountered.get()
    names = _cached_property_names(type(value)) if encountered is not None else None
    if not encountered or not names:
        return attributes
    if unfilled := names - attributes.keys():
        encountered.unfilled.append(UnfilledProperties(value, unfilled))
    without = encountered.without.get(id(value), ())
    return {name: attribute for name, attribute in attributes.items() if name not in without} if without else attributes


def _cached_property_names(cls: type) -> frozenset[str]:
    """The names under which instances of a class keep what their cached properties gave."""
    names_seen: set[str] = set()
    found: set[str] = set()
    for base in cls.__mro__[:-1]:
        attributes = vars(base)
        found.update(
            name
            for name, each in attributes.items()
            if isinstance(each, functools.cached_property) and name not in names_seen
        )
        names_seen |= attributes.keys()
    return frozenset(found)
