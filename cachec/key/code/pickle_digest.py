"""The digest of a value's pickle, for an object without another canonical form.

The digest is part of the key, so a pickle that differs between two processes costs a miss and never a wrong hit.
A pickle that does not hold all of an object is refused. Functions and classes, which pickle names only, count by
their code. Texts and sets have a form of their own here, so that neither hashes nor shared texts change the pickle.
"""

from __future__ import annotations

import copyreg
import pickle
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from blake3 import blake3

from cachec.base.display_text import module_of
from cachec.base.instances import attribute, class_attribute, present_fields
from cachec.errors import MAX_FOREIGN, CachecError, UnkeyableArgument, clip

_PROTOCOL = 5
_BY_REFERENCE = (FunctionType, BuiltinFunctionType, type, ModuleType)
_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes})
_METHODS = ("__reduce_ex__", "__reduce__", "__getstate__")
#: How deep the parts of a reduced object are searched for the attributes that it must hold.
_DEPTH = 4


def pickle_digest(value: object, name: str, follow: Callable[[object], str], inert: Callable[[object], bool]) -> str:
    """The digest of the pickle of ``value``. Raises UnkeyableArgument where it has none, or the pickle is not whole.

    name: of the value, for messages. follow: returns the digest that stands for a function, class or module. inert:
    whether an object takes no part in any result.
    """
    hasher = blake3()
    try:
        _DigestPickler(_Sink(hasher.update), name, follow, inert).dump(value)
    except CachecError:
        raise
    except Exception as error:  # the project's own code runs here, and may raise anything
        raise UnkeyableArgument(f"{name} can't be pickled ({clip(error, MAX_FOREIGN)})") from error
    return hasher.hexdigest()


class _Sink:
    """A file that is written to alone."""

    def __init__(self, write: Callable[[Any], object]) -> None:
        self.write = write


class _DigestPickler(pickle.Pickler):
    def __init__(
        self, file: _Sink, name: str, follow: Callable[[object], str], inert: Callable[[object], bool]
    ) -> None:
        super().__init__(file, protocol=_PROTOCOL)
        self._name = name
        self._follow = follow
        self._inert = inert

    def persistent_id(self, value: Any) -> str | None:
        """What stands for a value in the pickle; None for one that is pickled. Each answer is a new string."""
        kind = type(value)
        if kind is str:
            return f"text {value}"
        if issubclass(kind, _BY_REFERENCE):
            return f"code {self._follow(value)}"
        if kind in (set, frozenset):
            items = sorted(pickle_digest(each, self._name, self._follow, self._inert) for each in value)
            return f"{kind.__name__} {' '.join(items)}"
        if self._inert(value):
            return f"inert {module_of(kind)}.{kind.__qualname__}"
        return None

    def reducer_override(self, value: Any) -> Any:
        """What pickle makes of an instance, which must hold all of its attributes."""
        kind = type(value)
        self._follow(kind)
        # A `partial` is pickled in another way once somebody has asked it for its `__dict__`: ask before it is pickled.
        attribute(value, "__dict__")
        special = copyreg.dispatch_table.get(kind)
        reduced = special(value) if special is not None else value.__reduce_ex__(_PROTOCOL)
        if isinstance(reduced, str):
            raise UnkeyableArgument(
                f"{self._name} is pickled by its name {reduced!r}, which tells nothing of its state"
            )
        if special is not None or not _is_default(kind):
            self._check_whole(value, reduced)
        return reduced

    def _check_whole(self, value: Any, reduced: tuple[Any, ...]) -> None:
        kind, parts = type(value), _within(reduced[1:3], _DEPTH)
        knows = any(map(_knows_attributes, (class_attribute(kind, name) for name in _METHODS)))
        for name, each in _attributes(value).items():
            if type(each) in _SCALARS:
                is_held = each in parts.scalars if knows else (name, each) in parts.fields
            else:
                is_held = id(each) in parts.ids or self._inert(each)
            if not is_held:
                what = f"{module_of(kind)}.{kind.__qualname__}"
                raise UnkeyableArgument(f"{self._name} holds a {what}, whose pickle leaves out its {name}")


class _PickledParts:
    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.scalars: set[Any] = set()
        #: Scalars in dicts, with their keys.
        self.fields: set[tuple[Any, Any]] = set()


def _within(value: Any, depth: int) -> _PickledParts:
    """What is in a reduced object, at most ``depth`` containers deep."""
    parts, level = _PickledParts(), [value]
    for _ in range(depth):
        inner: list[Any] = []
        for each in level:
            parts.ids.add(id(each))
            if type(each) in _SCALARS:
                parts.scalars.add(each)
            elif isinstance(each, tuple | list):
                inner += each
            elif isinstance(each, dict):
                inner += each.values()
                parts.fields.update(pair for pair in each.items() if type(pair[1]) in _SCALARS)
        level = inner
    return parts


def _is_default(kind: type) -> bool:
    """Whether instances of a class are pickled as Python does it: with all of their attributes."""
    return all(class_attribute(kind, name) is vars(object)[name] for name in _METHODS)


def _knows_attributes(method: object) -> bool:
    """Whether a method that pickles may know the attributes of an instance. One of Python's own does not: a number that
    it pickles is another one, such as a length."""
    return isinstance(method, FunctionType) and method.__module__.partition(".")[0] not in sys.stdlib_module_names


def _attributes(value: Any) -> dict[str, Any]:
    own = attribute(value, "__dict__")
    found: dict[str, Any] = dict(own) if isinstance(own, dict) else {}
    for base in type(value).__mro__:
        named = vars(base).get("__slots__", ())
        for slot in (named,) if isinstance(named, str) else named:
            name = f"_{base.__name__.lstrip('_')}{slot}" if slot.startswith("__") and not slot.endswith("__") else slot
            if slot not in {"__dict__", "__weakref__"}:
                found |= present_fields(value, (name,))
    return found
