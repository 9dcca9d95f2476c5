"""What an instance of a user's class holds, found without running any of the class's code."""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Iterable
from types import MethodType
from typing import Any, TypeGuard, TypeVar

import msgspec

from cachec.base.cached_properties import counting

T = TypeVar("T")

_WORD = struct.calcsize("P")


def class_attribute(cls: type, name: str) -> Any:
    """What a class or a base declares under ``name``, or None; no descriptor or metaclass is asked."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def is_array(cls: type) -> bool:
    """Whether instances are arrays of numpy, maybe of a subclass."""
    return any(base.__module__ == "numpy" and base.__qualname__ == "ndarray" for base in cls.__mro__)


def attribute(value: object, name: str) -> Any:
    """An attribute as ``object`` finds it, or None: no ``__getattr__`` of the value's class runs, and what a property
    raises is no answer."""
    try:
        return object.__getattribute__(value, name)
    except Exception:  # noqa: BLE001 - a property is the value's own code
        return None


def is_instance(value: object, *kinds: type[T]) -> TypeGuard[T]:
    """Whether a value is of one of these types, without its own code: ``isinstance`` asks for its ``__class__``."""
    return issubclass(type(value), kinds)


def present_fields(value: object, names: Iterable[str]) -> dict[str, Any]:
    """Those of the fields that an instance has, by name: no ``__getattr__`` of its class runs."""
    found = {}
    for name in names:
        with contextlib.suppress(AttributeError):
            found[name] = object.__getattribute__(value, name)
    return found


def function_of(value: object) -> object:
    """The function of a bound method; any other value itself."""
    return value.__func__ if type(value) is MethodType else value


def has_class(value: object) -> bool:
    """Whether ``__class__`` of a value is a class, as ``isinstance`` asks; not of one that answers for every name."""
    try:
        return issubclass(type(value.__class__), type)
    except Exception:  # noqa: BLE001 - what the value's own code raises
        return False


def field_names(cls: type) -> tuple[str, ...] | None:
    """The field names of a dataclass, msgspec or attrs class, in order; None for any other class."""
    if class_attribute(cls, "__dataclass_fields__") is not None:
        import dataclasses  # it brings inspect, 5 ms; where a dataclass exists it is imported already

        return tuple(each.name for each in dataclasses.fields(cls))
    if isinstance(cls, msgspec.StructMeta):
        return cls.__struct_fields__
    attrs = class_attribute(cls, "__attrs_attrs__")
    return None if attrs is None else tuple(each.name for each in attrs)


def holds_only_attributes(cls: type, builtin: type = object) -> bool:
    """Whether all that an instance holds, beside what a ``builtin`` base does, is in its ``__dict__`` and its slots: no
    base is a compiled one with fields of its own.
    """
    words = 0
    for base in cls.__mro__:
        if base not in builtin.__mro__:
            named = vars(base).get("__slots__", ())
            words += len({named} if isinstance(named, str) else set(named) - {"__dict__", "__weakref__"})
    # Where the interpreter manages these two itself, their offsets are negative; of a class of items the first is.
    words += cls.__dictoffset__ > 0 or (cls.__dictoffset__ != 0 and cls.__itemsize__ != 0)
    words += cls.__weakrefoffset__ > 0
    return cls.__itemsize__ == builtin.__itemsize__ and cls.__basicsize__ <= builtin.__basicsize__ + _WORD * words


def state(value: object) -> dict[str, Any]:
    """The attributes that an instance holds itself, without cached properties, which are made again when they are
    asked for."""
    cls = type(value)
    return {
        name: part
        for name, part in attributes(value).items()
        if not isinstance(class_attribute(cls, name), functools.cached_property)
    }


def counted_attributes(value: object) -> dict[str, Any]:
    """The attributes by which an instance counts in a key: as ``state``, with what cached properties hold. Nobody can
    tell without running them whether they would give that.
    """
    return counting(value, attributes(value))


def attributes(value: object) -> dict[str, Any]:
    """All attributes that an instance holds itself. First its ``__dict__`` in its order, which a program can see, then
    the slots by name, which have none."""
    # object.__getstate__ (Python 3.11) is the language's own answer to "what is in this object": None, a dict, or a
    # pair of the dict and the slots. Called on object, so that a class can't hide anything.
    whole = object.__getstate__(value)
    own, slots = whole if isinstance(whole, tuple) else (whole, None)
    return {**(own or {}), **dict(sorted((slots or {}).items()))}
