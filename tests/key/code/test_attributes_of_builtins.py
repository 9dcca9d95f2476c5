"""An attribute that a program sets on an object of a built-in kind counts, or the object is refused."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import ipaddress
import pathlib
import uuid
from typing import Any

import numpy as np
import pytest

from cachec.errors import UnkeyableArgument
from cachec.key.code.pickle_digest import pickle_digest

KINDS: dict[type, Any] = {
    np.ndarray: np.arange(2).view,
    bytearray: lambda cls: cls(b"1"),
    collections.OrderedDict: lambda cls: cls(a=1),
    collections.defaultdict: lambda cls: cls(int),
    collections.deque: lambda cls: cls([1]),
    datetime.datetime: lambda cls: cls(2020, 1, 1),
    datetime.timedelta: lambda cls: cls(1),
    decimal.Decimal: lambda cls: cls("1"),
    dict: lambda cls: cls(a=1),
    Exception: lambda cls: cls(1),
    fractions.Fraction: lambda cls: cls(1),
    ipaddress.IPv4Address: lambda cls: cls(1),
    list: lambda cls: cls([1]),
    pathlib.PurePosixPath: lambda cls: cls("1"),
    uuid.UUID: lambda cls: cls(int=1),
}


def _digest(value: object) -> str | None:
    try:
        return pickle_digest(value, "v", lambda each: str(each), lambda _: False)
    except UnkeyableArgument:
        return None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_attribute_of_a_subclass_counts(kind: type) -> None:
    cls = type("Own", (kind,), {})
    digests = []
    for extra in (0, 1, 2, "1", None, True):
        value = KINDS[kind](cls)
        try:
            value.extra = extra
        except TypeError:  # ``UUID`` is immutable
            vars(value)["extra"] = extra
        digests.append(_digest(value))
    known = [each for each in digests if each is not None]
    assert len(set(known)) == len(known)
