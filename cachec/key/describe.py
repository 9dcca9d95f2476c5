"""Describes values in words, for the details of key parts and for messages; never hashed."""

from __future__ import annotations

import collections
import enum
import itertools
import types
from collections.abc import Iterable
from typing import Any, Final

from cachec.base.display_text import is_secret, module_of
from cachec.base.instances import attribute, field_names

#: Characters of a value by which entries are selected: more are not typed.
MAX_VALUE: Final = 200

#: In place of a text that goes by a secret's name.
SECRET: Final = "a secret, left out"

#: How many levels of containers are spelled out.
_DEPTH: Final = 4

#: Modules whose values have a short ``repr`` that runs no code of the user.
_LIBRARY: Final = frozenset({"datetime", "decimal", "fractions", "uuid", "zoneinfo", "pathlib", "pathlib._local"})
_ARRAYS: Final = frozenset({"numpy", "ml_dtypes", "jax", "jaxlib", "torch"})
MAPPINGS: Final = frozenset(
    {dict, collections.OrderedDict, collections.defaultdict, collections.Counter, types.MappingProxyType}
)
_BRACKETS: Final = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), frozenset: ("{", "}")}


def describe(value: object, limit: int = 80, name: str = "") -> str:
    """A short text for ``value``, ``limit`` characters at most. Runs no ``repr`` of an unknown type and never dumps an
    array, long bytes, or a text that goes by a secret's name. name: what the value goes by.
    """
    return _cut(_describe(value, limit, _DEPTH, name), limit)


def ordinal(value: object, limit: int) -> str:
    """The same with secrets, by which values are put into one order; not to be shown."""
    return _cut(_describe(value, limit, _DEPTH, None), limit)


def name_of_class(value: object) -> str:
    """Module and name of the class of a value; no code of the class or its metaclass runs."""
    cls = type(value)
    return f"{type.__getattribute__(cls, '__module__')}.{type.__getattribute__(cls, '__qualname__')}"


def words_of(error: BaseException) -> str:
    """The type of an exception and its plain arguments. Does not call its ``str``, which is the user's code."""
    plain = (describe(each) for each in error.args if type(each) in {str, int, float, bytes})
    return f"{type(error).__qualname__}({', '.join(plain)})"


def literal_text(value: object, name: str) -> str:
    """``value`` as it is written, whole; empty where that takes more than ``MAX_VALUE`` characters, or is not all."""
    text = describe(value, MAX_VALUE, name)
    is_whole = not text.endswith("…") if type(value) is str else "…" not in text
    return text if is_whole and SECRET not in text else ""


def item_path(path: str, key: object) -> str:
    """The path of an item of a mapping: no two keys that are plain scalars share one."""
    scalar = key is None or type(key) in {bool, int, float, str, bytes}
    return f"{path}[{key!r}]" if scalar else f"{path}[{describe(key, 30)}]"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"


def _describe(value: Any, limit: int, depth: int, name: str | None) -> str:
    """name: what the value, or what holds it, goes by; None where secrets are told."""
    cls = type(value)
    if cls in {str, bytes, bytearray} and name and is_secret(name):
        return SECRET
    if value is None or cls in {bool, float, complex, range} or value is Ellipsis:
        return repr(value)
    if cls is int:
        return repr(value) if value.bit_length() < 256 else f"int of {value.bit_length()} bits"
    if cls is str:
        return repr(value) if len(value) <= limit else f"{value[: max(limit - 3, 0)]!r}…"
    if cls in {bytes, bytearray}:
        return repr(value) if len(value) <= 24 else f"{cls.__name__} of {len(value)} bytes {bytes(value[:8]).hex()}…"
    if isinstance(value, type):
        return f"{module_of(value)}.{value.__qualname__}".removeprefix("builtins.")
    if cls is types.FunctionType:
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, enum.Enum):
        return f"{cls.__qualname__}.{value.name}"
    if depth:
        text = _container(value, cls, limit, depth - 1, name)
        if text is not None:
            return text
    if module_of(cls) in _LIBRARY:
        return repr(value)
    if module_of(cls).partition(".")[0] in _ARRAYS:
        dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
        if isinstance(shape, tuple) and shape:
            return f"array {dtype}{list(shape)}"
        if module_of(cls) in {"numpy", "numpy.dtypes", "ml_dtypes"}:
            return repr(value)
    return f"<{module_of(cls)}.{cls.__qualname__}>"


def _container(value: Any, cls: type, limit: int, depth: int, outer: str | None) -> str | None:
    def describe_item(item: object, name: object = "") -> str:
        keeps = outer is None or type(name) is not str or not name or is_secret(outer)
        return _describe(item, limit, depth, outer if keeps else str(name))

    if cls in _BRACKETS:
        opening, closing = _BRACKETS[cls]
        texts: Iterable[str] = map(describe_item, value)
        if opening == "{":
            texts = sorted(itertools.islice(texts, 64))
        single = "," if cls is tuple and len(value) == 1 else ""
        return f"{opening}{_join_texts(texts, limit, len(value))}{single}{closing}"
    if cls in MAPPINGS:
        pairs = (f"{_describe(key, limit, depth, None)}: {describe_item(item, key)}" for key, item in value.items())
        return f"{{{_join_texts(pairs, limit, len(value))}}}"
    names = getattr(cls, "_fields", None) if isinstance(value, tuple) else field_names(cls)
    if names is not None:
        parts = (f"{name}={describe_item(attribute(value, name), name)}" for name in names)
        return f"{cls.__qualname__}({_join_texts(parts, limit, len(names))})"
    return None


def _join_texts(texts: Iterable[str], limit: int, count: int) -> str:
    """As many texts as fit into ``limit`` with their brackets, and how many there are where some do not."""
    shown: list[str] = []
    used = 2
    for text in texts:
        shown.append(text)
        used += len(text) + 2
        if used > limit + 2:
            break
    else:
        return ", ".join(shown)
    note = f"… {count} in all"
    while len(shown) > 1 and used + len(note) > limit:
        used -= len(shown.pop()) + 2
    return f"{', '.join(shown)}, {note}"
