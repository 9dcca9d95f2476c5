"""Canonical bytes of a stage's options: equal bytes exactly where two values are the same option.

Every value becomes a one-byte tag and a payload that says its own length, so no two different values share a form and
no form is the start of another. What counts as the same:

- the type counts: ``1``, ``1.0``, ``True``, ``"1"`` and ``b"1"`` all differ, and so do a tuple and a list, or a set and
  a frozenset, of the same items;
- the order of insertion of a dict counts, as that of whatever else keeps an order (a program that iterates sees it);
  only sets are sorted;
- a float counts by its bits: ``-0.0`` differs from ``0.0``, and so do two NaNs of another sign or payload, which
  ``copysign`` and ``struct`` tell apart, and compilers do;
- ``Decimal("1.0")`` and ``Decimal("1.00")`` differ, and so do two datetimes of one moment in two zones;
- an instance of a dataclass, enum, named tuple, attrs or msgspec class is its class (asked of ``special`` first, which
  may answer with its code; else its qualified name) and its whole state, fields that ``init`` or ``compare`` leave out
  included, and what a ``functools.cached_property`` holds.
"""

from __future__ import annotations

import collections
import enum
import struct
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final

import msgspec

from cachec.base.display_text import module_of
from cachec.base.instances import counted_attributes, field_names, has_class, holds_only_attributes, present_fields
from cachec.errors import UnkeyableArgument
from cachec.key.describe import describe, item_path, ordinal

__all__ = ["MAX_DEPTH", "Special", "describe", "encode", "plain"]

#: Asked for every value that is not an exact plain scalar, with its path; the bytes that stand for it, or None.
Special = Callable[[object, str], bytes | None]

#: Nesting beyond this is refused: it is a mistake, or would exhaust Python's own stack.
MAX_DEPTH: Final = 100

#: More containers than this are refused, one that is reached in two ways counted twice: a list of the same two lists,
#: and so on, has no end.
MAX_CONTAINERS: Final = 2_000_000

#: Characters of the path of a value in a message.
_LONGEST_PATH: Final = 80

_LENGTH = struct.Struct("<cQ")
_INT64 = struct.Struct("<cq")
_FLOAT = struct.Struct("<cd")


def encode(value: object, special: Special, path: str = "") -> bytes:
    """The canonical bytes of ``value``.

    path: how the value is called in messages (the argument's name). Raises UnkeyableArgument, naming the path, for
    what has no stable form: unknown types, cycles, nesting over ``MAX_DEPTH``.
    """
    scalar = SCALARS.get(type(value))
    if scalar is not None:
        return scalar(value)
    return _OptionWriter(special).encode(value, path)


def plain(value: object) -> bool:
    """Whether ``encode`` knows the type of ``value`` by itself: scalars, containers and values of the standard library,
    enum members, numpy scalars and dtypes. False for dataclasses and the like, for which a plugin may answer first.
    """
    cls = type(value)
    return cls in SCALARS or cls in _CONTAINERS or isinstance(value, enum.Enum) or _library_form(cls) is not None


# --- plain scalars: exact types only, no special, no recursion


def _frame(tag: bytes, data: bytes) -> bytes:
    return _LENGTH.pack(tag, len(data)) + data


def _int(value: int) -> bytes:
    if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
        return _INT64.pack(b"i", value)
    return _frame(b"I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _float(value: float) -> bytes:
    return _FLOAT.pack(b"d", value)


def _str(value: str) -> bytes:
    # surrogatepass: a lone surrogate (os.fsdecode makes them) has a form of its own too
    data = value.encode("utf-8", "surrogatepass")
    return _LENGTH.pack(b"s", len(data)) + data


def _bytes(value: bytes) -> bytes:
    return _LENGTH.pack(b"b", len(value)) + value


#: The bytes of values of these types.
SCALARS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: b"N",
    bool: lambda value: b"T" if value else b"F",
    int: _int,
    float: _float,
    str: _str,
    bytes: _bytes,
}


# --- everything else


class _OptionWriter:
    """One encoding: who to ask, and the containers that are being walked (for cycles)."""

    __slots__ = ("_active", "_containers", "_special")

    def __init__(self, special: Special) -> None:
        self._special = special
        self._active: list[int] = []
        self._containers = 0

    def encode(self, value: Any, path: str) -> bytes:
        cls = type(value)
        scalar = SCALARS.get(cls)
        if scalar is not None:
            return scalar(value)
        if not has_class(value):
            raise _refusal(value, path, "an object whose __class__ is no class")
        answer = self._special(value, path)
        if answer is not None:
            return _frame(b"*", answer)
        form = _CONTAINERS.get(cls) or _form(value)
        if form is None:
            raise _refusal(value, path)
        if id(value) in self._active:
            raise UnkeyableArgument(f"{_place(path)} contains itself, so it has no canonical form; pass it without")
        self._containers += 1
        if self._containers > MAX_CONTAINERS:
            raise UnkeyableArgument(f"{_place(path)} is one of over {MAX_CONTAINERS:,} containers; pass fewer")
        if len(self._active) >= MAX_DEPTH:
            raise UnkeyableArgument(f"{_place(path)} is nested over {MAX_DEPTH} deep; pass a flatter value")
        self._active.append(id(value))
        try:
            return form(self, value, path)
        finally:
            self._active.pop()

    def items(self, tag: bytes, values: Iterable[object], path: str) -> bytes:
        """Values in order."""
        forms = []
        for index, value in enumerate(values):
            scalar = SCALARS.get(type(value))
            forms.append(scalar(value) if scalar is not None else self.encode(value, f"{path}[{index}]"))
        return _LENGTH.pack(tag, len(forms)) + b"".join(forms)

    def sort_encodings(self, tag: bytes, values: Iterable[object], path: str) -> bytes:
        """Values in the order of their forms."""
        # special is asked in an order that no hash seed and no insertion changes, for it may note what it was asked
        forms = sorted(self.encode(value, f"{path}{{{describe(value, 30)}}}") for value in sorted(values, key=_order))
        return _LENGTH.pack(tag, len(forms)) + b"".join(forms)

    def mapping(self, tag: bytes, pairs: Mapping[Any, object], path: str) -> bytes:
        """Keys and values, in the order of the mapping."""
        parts = [_LENGTH.pack(tag, len(pairs))]
        for key, value in pairs.items():
            scalar = SCALARS.get(type(value))
            parts += (
                self._key(key, path),
                scalar(value) if scalar is not None else self.encode(value, item_path(path, key)),
            )
        return b"".join(parts)

    def _key(self, key: Any, path: str) -> bytes:
        scalar = SCALARS.get(type(key))
        return scalar(key) if scalar is not None else self.encode(key, f"{path}.keys(){{{describe(key, 30)}}}")

    def cls(self, cls: type, path: str) -> bytes:
        """The class of an instance: what the caller says of it, else its name."""
        answer = self._special(cls, f"{path}.__class__")
        return _frame(b"*", answer) if answer is not None else _class_name(cls)

    def instance(self, value: object, names: Iterable[str], path: str) -> bytes:
        """Class, the fields ``names``, and whatever else the instance holds, in the order of ``state``."""
        attributes = counted_attributes(value)
        if isinstance(type(value), msgspec.StructMeta):  # elsewhere a class may answer for what was deleted
            attributes |= present_fields(value, names)
        return b"O" + self.cls(type(value), path) + self.attributes(attributes, path)

    def attributes(self, attributes: Mapping[str, object], path: str) -> bytes:
        """Attributes by name, in order."""
        forms = [_str(name) + self.encode(value, f"{path}.{name}") for name, value in attributes.items()]
        return _LENGTH.pack(b"f", len(forms)) + b"".join(forms)

    def whole(self, value: Any, base: type | None, path: str) -> bytes:
        """An instance of a class that its code stands for: class, attributes, and the items of its built-in base."""
        cls = type(value)
        answer = self._special(cls, f"{path}.__class__")
        if answer is None:
            raise _refusal(value, path)
        form = b"W" + _frame(b"*", answer) + self.attributes(counted_attributes(value), path)
        if base is dict:
            return form + self.mapping(b"{", dict(dict.items(value)), path)
        if base in (set, frozenset):
            return form + self.sort_encodings(b"u", base.__iter__(value), path)
        return form if base is None else form + self.items(b"[", base.__iter__(value), path)  # type: ignore[attr-defined]


_Form = Callable[[_OptionWriter, Any, str], bytes]


def _order(value: object) -> str:
    return ordinal(value, 1000)


def _class_name(cls: type) -> bytes:
    return _frame(b"c", f"{module_of(cls)}:{cls.__qualname__}".encode("utf-8", "surrogatepass"))


def _memoryview(walk: _OptionWriter, value: memoryview, path: str) -> bytes:
    properties = (value.format, value.readonly, *(value.shape or ()))
    return b"m" + walk.items(b"(", properties, path) + _bytes(value.tobytes())


def _type(walk: _OptionWriter, value: type, path: str) -> bytes:
    resolved: object = sys.modules.get(module_of(value))
    for name in value.__qualname__.split("."):
        resolved = getattr(resolved, name, None)
    if resolved is not value:
        raise _refusal(value, path, "a class that can't be found by its name")
    return _class_name(value)


def _ordered_dict(walk: _OptionWriter, value: collections.OrderedDict[Any, Any], path: str) -> bytes:
    _without_attributes(value, path)
    return walk.mapping(b"<", value, path)


def _counter(walk: _OptionWriter, value: collections.Counter[Any], path: str) -> bytes:
    _without_attributes(value, path)
    return walk.mapping(b"C", value, path)


def _without_attributes(value: object, path: str) -> None:
    attributes = counted_attributes(value)
    if attributes:
        raise _refusal(
            value, path, f"a {type(value).__qualname__} with attributes of its own ({', '.join(attributes)})"
        )


def _defaultdict(walk: _OptionWriter, value: collections.defaultdict[Any, Any], path: str) -> bytes:
    factory = walk.encode(value.default_factory, f"{path}.default_factory")
    return b"D" + factory + walk.mapping(b"{", value, path)


def _deque(walk: _OptionWriter, value: collections.deque[Any], path: str) -> bytes:
    return b"Q" + walk.encode(value.maxlen, path) + walk.items(b"[", value, path)


_CONTAINERS: Final[Mapping[type, _Form]] = {
    complex: lambda walk, value, path: b"j" + _float(value.real) + _float(value.imag),
    bytearray: lambda walk, value, path: _frame(b"B", bytes(value)),
    memoryview: _memoryview,
    tuple: lambda walk, value, path: walk.items(b"(", value, path),
    list: lambda walk, value, path: walk.items(b"[", value, path),
    set: lambda walk, value, path: walk.sort_encodings(b"u", value, path),
    frozenset: lambda walk, value, path: walk.sort_encodings(b"U", value, path),
    dict: lambda walk, value, path: walk.mapping(b"{", value, path),
    collections.OrderedDict: _ordered_dict,
    collections.defaultdict: _defaultdict,
    collections.Counter: _counter,
    collections.deque: _deque,
    types.MappingProxyType: lambda walk, value, path: walk.mapping(b"P", value, path),
    types.SimpleNamespace: lambda walk, value, path: walk.mapping(b"S", vars(value), path),
    range: lambda walk, value, path: walk.items(b"r", (value.start, value.stop, value.step), path),
    slice: lambda walk, value, path: walk.items(b":", (value.start, value.stop, value.step), path),
    type(Ellipsis): lambda walk, value, path: b".",
    type(NotImplemented): lambda walk, value, path: b"!",
    type: _type,
}


# --- values of the standard library and of numpy, known by name: their modules are not imported for this


def _text(tag: str, text: Callable[[Any], str]) -> _Form:
    head = tag.encode()
    return lambda walk, value, path: b"L" + _bytes(head) + _str(text(value))


def _parts(tag: str, parts: Callable[[Any], tuple[object, ...]]) -> _Form:
    head = tag.encode()
    return lambda walk, value, path: b"L" + _bytes(head) + walk.items(b"(", parts(value), path)


#: How the form of a decimal number begins.
DECIMAL: Final = b"L" + _bytes(b"decimal")

_LIBRARY: Final[Mapping[str, _Form]] = {
    # fold tells the two readings of an hour that a change of clocks repeats
    "datetime.datetime": _parts("datetime", lambda v: (v.replace(tzinfo=None).isoformat(), v.fold, v.tzinfo)),
    "datetime.date": _text("date", lambda v: v.isoformat()),
    "datetime.time": _parts("time", lambda v: (v.replace(tzinfo=None).isoformat(), v.fold, v.tzinfo)),
    "datetime.timedelta": _parts("timedelta", lambda v: (v.days, v.seconds, v.microseconds)),
    "datetime.timezone": _parts("timezone", lambda v: (v.utcoffset(None), v.tzname(None), repr(v))),
    "decimal.Decimal": _text("decimal", str),
    "fractions.Fraction": _parts("fraction", lambda v: (v.numerator, v.denominator)),
    "uuid.UUID": _parts("uuid", lambda v: (v.int, v.is_safe)),
    "random.Random": _parts("random", lambda v: v.getstate()),
}


def _pure_path(walk: _OptionWriter, value: PurePath, path: str) -> bytes:
    if hasattr(value, "stat"):
        raise _refusal(value, path, "a path, which is keyed by the content of its file by the caller")
    return b"L" + _bytes(type(value).__name__.encode()) + _str(str(value))


def _numpy_scalar(walk: _OptionWriter, value: Any, path: str) -> bytes:
    dtype = value.dtype
    head = b"n" + _numpy_dtype(walk, dtype, path)
    if dtype.kind == "c" and dtype.char in "FD":
        return head + _numpy_scalar(walk, value.real, path) + _numpy_scalar(walk, value.imag, path)
    foreign = module_of(type(value)) == "ml_dtypes"
    if dtype.char in "gGO" or (dtype.kind == "V" and not foreign) or (foreign and "complex" in dtype.name):
        raise _refusal(value, path)  # long double has padding of any content; objects and records no bytes of their own
    return head + _bytes(value.tobytes())


def _numpy_dtype(walk: _OptionWriter, value: Any, path: str) -> bytes:
    if value.kind == "T":
        raise _refusal(value, path)  # a StringDType has settings that no attribute of dtype shows
    parts: list[object] = [value.str, value.name, value.char, value.itemsize, value.isalignedstruct]
    if value.metadata:
        parts.append(dict(value.metadata))
    if value.fields is not None:
        parts += [(name, value.fields[name]) for name in value.names]
    if value.subdtype is not None:
        parts.append(value.subdtype)
    return b"y" + walk.items(b"(", parts, path)


def _library_form(cls: type) -> _Form | None:
    module = module_of(cls)
    if module in {"numpy", "numpy.dtypes", "ml_dtypes"}:
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        if issubclass(cls, numpy.generic):
            return _numpy_scalar
        return _numpy_dtype if issubclass(cls, numpy.dtype) else None
    if issubclass(cls, PurePath):
        return _pure_path
    form = _LIBRARY.get(f"{module}.{cls.__qualname__}")
    if form is not None and getattr(sys.modules.get(module), cls.__qualname__, None) is cls:
        return form
    if cls.__name__ in ("Generator", "RandomState") and module in ("numpy.random._generator", "numpy.random.mtrand"):
        return _generator
    if module == "zoneinfo" and cls.__qualname__ == "ZoneInfo":
        return _zone
    return None


def _generator(walk: _OptionWriter, value: Any, path: str) -> bytes:
    # Ints and, for some algorithms, arrays of them: the words of its state.
    state = value.bit_generator.state if hasattr(value, "bit_generator") else value.get_state(legacy=False)
    words = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in _flat(state)}
    return b"L" + _bytes(b"generator") + walk.mapping(b"{", words, path)


def _flat(state: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in state.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, value


def _zone(walk: _OptionWriter, value: Any, path: str) -> bytes:
    if value.key is None:
        raise _refusal(value, path, "a time zone without a name")
    return b"L" + _bytes(b"zoneinfo") + _str(value.key)


# --- classes of the user


def _enum(walk: _OptionWriter, value: enum.Enum, path: str) -> bytes:
    raw = value.value
    simple = type(raw) in SCALARS or (type(raw) is tuple and all(type(item) in SCALARS for item in raw))
    form = walk.encode(raw, f"{path}.value") if simple else b"_"  # the name says it; the class has the rest
    return b"E" + walk.cls(type(value), path) + _str(str(value.name)) + form


#: Built-in types whose content a subclass also has, beside its attributes.
_BASES: Final[tuple[type, ...]] = (bool, int, float, complex, str, bytes, bytearray, tuple, list, set, frozenset, dict)


#: Py_TPFLAGS_HEAPTYPE (Include/object.h): the class was made by a class statement, not compiled in.
_HEAPTYPE: Final = 1 << 9


def _form(value: object) -> _Form | None:
    """How a value of none of the exact types is encoded; None where it can't be."""
    cls = type(value)
    library = _library_form(cls)
    if library is not None:
        return library
    if issubclass(cls, type):
        return _type
    if issubclass(cls, enum.Enum):
        return _enum
    own = isinstance(cls, msgspec.StructMeta)  # the compiled base of these holds nothing but the fields
    if not own and not all(base is object or base in _BASES or base.__flags__ & _HEAPTYPE for base in cls.__mro__):
        return None  # a built-in base (an exception) holds things that no attribute shows
    base = next((each for each in _BASES if issubclass(cls, each)), None)  # ``__class__`` of a proxy may be another
    names = field_names(cls)
    if base is None and names is not None:
        return lambda walk, value, path: walk.instance(value, names, path)
    if base is not None and base in SCALARS and not counted_attributes(value) and names is None:
        return lambda walk, value, path: b"x" + walk.cls(cls, path) + SCALARS[base](value)
    if base is tuple and hasattr(cls, "_fields") and not counted_attributes(value) and names is None:
        return _named_tuple
    if (
        cls is not object
        and base in (None, dict, list, tuple, set, frozenset)
        and holds_only_attributes(cls, base or object)
    ):
        # What such a class means by its attributes and items is in its code.
        return lambda walk, value, path: walk.whole(value, base, path)
    return None


def _named_tuple(walk: _OptionWriter, value: Any, path: str) -> bytes:
    head = b"t" + walk.cls(type(value), path) + walk.items(b"(", type(value)._fields, path)
    return head + walk.items(b"(", tuple(value), path)


def _place(path: str) -> str:
    shown = path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}..."
    return f"argument {shown}" if path else "the value"


def _refusal(value: object, path: str, what: str = "") -> UnkeyableArgument:
    cls = type(value)
    what = what or f"a {module_of(cls)}.{cls.__qualname__}"
    return UnkeyableArgument(
        f"{_place(path)} is {what} ({describe(value, 40)}) and has no stable key. Make it a dataclass of plain values, "
        "pass a file as cachec.File and tensors as a WeightSet, leave the argument out with ignore=[...] if it can't "
        "change the result, or install a plugin for its type"
    )
