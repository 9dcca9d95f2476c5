"""The record of a run as bytes, for another process: JSON of the tuples in ``accesses``.

Paths are text with surrogate escapes, as ``os.fsdecode`` gives it; JSON carries them as ``\\udcXX``.
"""

from __future__ import annotations

import json
import os
import sys
from enum import IntFlag, StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from cachec.tracing.accesses import Accesses

#: Another form of the records, or another meaning, gets another number.
_FORM = "record 4"


class DamagedRecord(ValueError):
    """The bytes are not a record of this form."""


def encode(accesses: Accesses) -> bytes:
    """Return the bytes of a record."""
    return json.dumps([_FORM, sys.getfilesystemencoding(), accesses]).encode()


def decode(data: bytes) -> Accesses:
    """Return the record. Raises DamagedRecord, also where the writer has paths in another encoding."""
    try:
        form, encoding, value = json.loads(data)
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedRecord(f"{len(data)} bytes are no record") from error
    if (form, encoding) != (_FORM, sys.getfilesystemencoding()):
        raise DamagedRecord(f"form {form!r} with paths in {encoding!r}")
    accesses: Accesses = _read(value, Accesses)
    return accesses


def _read(value: Any, hint: Any) -> Any:
    """Return ``value``, which JSON gave, as the type that ``hint`` names."""
    origin = get_origin(hint)
    if origin is UnionType:  # None or one other type
        (other,) = set(get_args(hint)) - {NoneType}
        return None if value is None else _read(value, other)
    if origin is tuple and type(value) is list:
        return tuple(_read(each, get_args(hint)[0]) for each in value)
    if isinstance(hint, type):
        if fields := _fields(hint):
            if type(value) is list and len(value) == len(fields):
                return hint(*map(_read, value, fields))
        elif issubclass(hint, IntFlag):
            if type(value) is int and 0 <= value <= max(hint) * 2 - 1:
                return hint(value)
        elif issubclass(hint, StrEnum):
            if value in list(hint):
                return hint(value)
        elif type(value) is hint and not (isinstance(value, str) and not _is_path(value)):
            return value
    raise DamagedRecord(f"{value!r:.100} is not of type {hint}")


@cache
def _fields(type_: type) -> tuple[Any, ...]:
    """Types of the fields of a NamedTuple; empty for another type."""
    names = getattr(type_, "_fields", ())
    hints = get_type_hints(type_) if names else {}
    return tuple(hints[name] for name in names)


def _is_path(text: str) -> bool:
    """Whether the kernel takes ``text`` as a path."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
