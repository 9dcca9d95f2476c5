"""Dataclasses, named tuples and enum members: a class by name, and its fields.

A class is found among the modules that are loaded already. Of one that is not the caller decides: a row of the cache
alone never causes an import. An instance is made without running any code of its class (no ``__init__``, no
``__post_init__``).
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from typing import Any

from cachec.base.display_text import module_of
from cachec.base.instances import class_attribute, field_names, present_fields, state
from cachec.codecs.base import corrupt, unstorable
from cachec.errors import ClassNotLoaded
from cachec.model import Fault, Inline

#: Imports the module that a row names a class of, where that may be. Raises ClassNotLoaded.
Importing = Callable[[str], None]

_AT_TOP = "define the class at the top level of a module, under the name that it has there"


def class_name(value: object, path: str) -> str:
    """``module:qualname`` of the class of ``value``. Raises UnstorableResult where it could not be found by that."""
    cls = type(value)
    name = f"{module_of(cls)}:{cls.__qualname__}"
    if _find(name) is not cls:
        raise unstorable(value, path, _AT_TOP)
    return name


def _find(name: str) -> object:
    module, _, qualname = name.partition(":")
    place: object = sys.modules.get(module)
    for each in qualname.split("."):
        # vars: no module __getattr__ (a lazy import) and no descriptor runs because a row names it
        place = getattr(place, "__dict__", {}).get(each)
    return place


def _class(name: str, importing: Importing) -> type:
    module, cls = name.partition(":")[0], _find(name)
    was_loaded = module in sys.modules
    if not was_loaded:
        importing(module)
        cls = _find(name)
    if not isinstance(cls, type):
        text = f"no class {name[:200]!r} is loaded"
        raise corrupt(text) if was_loaded else ClassNotLoaded(Fault.ROW_CORRUPT, text)
    return cls


def is_record(cls: type) -> bool:
    """Whether instances of this class are stored field by field."""
    return _is_dataclass(cls) or _is_named_tuple(cls)


def _is_dataclass(cls: type) -> bool:
    return (
        class_attribute(cls, "__dataclass_fields__") is not None and class_attribute(cls, "__new__") is object.__new__
    )


def _is_named_tuple(cls: type) -> bool:
    names = class_attribute(cls, "_fields")
    return issubclass(cls, tuple) and isinstance(names, tuple) and all(type(name) is str for name in names)


def fields(value: Any, path: str) -> dict[str, Any]:
    """The fields of a record by name. Raises UnstorableResult where it holds more than its fields, or less."""
    cls = type(value)
    attributes = state(value)
    if _is_named_tuple(cls):
        names: tuple[str, ...] = cls._fields
        values = dict(zip(names, tuple(value), strict=True))
    else:
        names = field_names(cls) or ()
        values = present_fields(value, names)
        missing = [name for name in names if name not in values]
        if missing:
            raise unstorable(value, path, f"set its field {missing[0]!r}, which it lacks")
        attributes = {name: part for name, part in attributes.items() if name not in values}
    if attributes:
        extra = next(iter(attributes))
        raise unstorable(value, path, f"declare its attribute {extra!r} as a field, so that it is stored too")
    return values


def make(name: str, values: dict[str, Any], importing: Importing) -> Any:
    """An instance of a dataclass or named tuple with exactly these fields. Raises StoreFault (row-corrupt),
    ClassNotLoaded."""
    cls = _class(name, importing)
    if _is_named_tuple(cls):
        expected: tuple[str, ...] = class_attribute(cls, "_fields")
    elif _is_dataclass(cls):
        expected = field_names(cls) or ()
    else:
        raise corrupt(f"{name!r} is neither a dataclass nor a named tuple")
    if tuple(values) != expected:
        raise corrupt(f"{name!r} has the fields {list(expected)}, stored were {list(values)}")
    if _is_named_tuple(cls):
        return tuple.__new__(cls, values.values())
    value: object = object.__new__(cls)
    for each, part in values.items():
        object.__setattr__(value, each, part)  # a frozen class refuses its own
    return value


def encode_member(value: enum.Enum, path: str) -> Inline:
    """An enum member by name. Raises UnstorableResult for a combination of flags that has no name of its own."""
    if type(value).__members__.get(str(value.name)) is not value:
        raise unstorable(value, path, "give this combination a name in the class, or return its value")
    return Inline("enum", f"{class_name(value, path)}:{value.name}")


def decode_member(text: str, importing: Importing) -> enum.Enum:
    """The member back. Raises StoreFault (row-corrupt), ClassNotLoaded."""
    name, _, member = text.rpartition(":")
    cls = _class(name, importing)
    value = cls.__members__.get(member) if issubclass(cls, enum.Enum) else None
    if value is None:
        raise corrupt(f"{name!r} is no enum with a member {member!r}")
    return value
