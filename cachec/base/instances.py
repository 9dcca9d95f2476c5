"""What an instance of a user's class holds, found without running any of the class's code."""

from __future__ import annotations

import functools
from typing import Any

import msgspec


def class_attribute(cls: type, name: str) -> Any:
    """What a class or a base declares under ``name``, or None; no descriptor or metaclass is asked."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def field_names(cls: type) -> tuple[str, ...] | None:
    """The field names of a dataclass, msgspec or attrs class, in order; None for any other class."""
    if class_attribute(cls, "__dataclass_fields__") is not None:
        import dataclasses  # it brings inspect, 5 ms; where a dataclass exists it is imported already

        return tuple(each.name for each in dataclasses.fields(cls))
    if isinstance(cls, msgspec.StructMeta):
        return cls.__struct_fields__
    attrs = class_attribute(cls, "__attrs_attrs__")
    return None if attrs is None else tuple(each.name for each in attrs)


def state(value: object) -> dict[str, Any]:
    """The attributes that an instance holds itself (``__dict__`` and slots), without cached properties: those are
    derived from the rest.
    """
    # object.__getstate__ (Python 3.11) is the language's own answer to "what is in this object": None, a dict, or a
    # pair of the dict and the slots. Called on object, so that a class can't hide anything.
    found = object.__getstate__(value)
    parts = found if isinstance(found, tuple) else (found,)
    attributes = {name: part for each in parts if each for name, part in each.items()}
    cls = type(value)
    return {
        name: part
        for name, part in attributes.items()
        if not isinstance(class_attribute(cls, name), functools.cached_property)
    }
