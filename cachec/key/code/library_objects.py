"""Objects of libraries among the values that code reads: by name where the library has one, else by content."""

from __future__ import annotations

import functools
import gc
import os
import sys
import types
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from cachec.base.display_text import module_of
from cachec.base.instances import attribute
from cachec.errors import UnkeyableArgument
from cachec.key.code.module_sources import Locator

#: Modules of mocks, which take the place of others for a while.
_MOCKS = frozenset({"unittest.mock", "mock.mock"})
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, type(Ellipsis)})
#: What ``functools.update_wrapper`` and the like copy: names and documentation.
_COPIED = frozenset(
    {"__annotations__", "__name__", "__module__", "__doc__", "__qualname__", "__type_params__", "__annotate__"}
)
_DEPTH = 6
#: Objects that one wrapper may lead to.
_MAX_OBJECTS = 10_000


def is_plain(value: object) -> bool:
    """Whether all of a value shows in its text: a scalar, or a tuple of such."""
    parts = value if type(value) is tuple else (value,)
    return all(type(each) in _PLAIN for each in parts)


def is_mock(value: object) -> bool:
    """Whether a value is a mock, or the function that ``create_autospec`` makes of one."""
    if isinstance(value, FunctionType):
        return is_mock(vars(value).get("mock"))
    return any(each.__name__ == "NonCallableMock" and module_of(each) in _MOCKS for each in type(value).__mro__)


def is_put(value: object, locator: Locator) -> bool:
    """Whether what a module of a library holds is the project's: a mock, a function, what wraps one, or an object of a
    class of the project."""
    name = module_of(type(value))
    file = getattr(sys.modules.get(name), "__file__", None)
    if is_mock(value) or name == "__main__" or (isinstance(file, str) and locator.of_file(file)[0] == "project"):
        return True
    return any(map(locator.is_own, (value, *(attribute(value, slot) for slot in ("__func__", "func", "__wrapped__")))))


def name_in_library(value: object, is_library: Callable[[str], bool]) -> tuple[str, str] | None:
    """Module and name under which a module of a library has this very object; None where none does.

    is_library: whether a module of that name is no project's.
    """
    kind = type(value)
    holder = attribute(value, "__self__")
    modules = [attribute(value, "__module__"), getattr(type(holder), "__module__", ""), module_of(kind)]
    names = [attribute(value, "__qualname__"), attribute(value, "__name__")]
    for module in modules:
        for name in names:
            if not (isinstance(module, str) and isinstance(name, str) and is_library(module)):
                continue
            if _find_by_name(sys.modules.get(module), name) is value:
                return (module, name)
    tops = {each.partition(".")[0] for each in modules if isinstance(each, str)} - {"builtins", "__main__"}
    found = [
        (module.count("."), module, name)
        for module, loaded in list(sys.modules.items())
        if module.partition(".")[0] in tops and isinstance(loaded, ModuleType) and is_library(module)
        for name, each in list(vars(loaded).items())
        if each is value
    ]
    return min(found)[1:] if found else None


def _find_by_name(module: object, qualname: str) -> object:
    owner = module
    for name in qualname.split("."):
        owner = vars(owner).get(name) if isinstance(owner, type | ModuleType) else None
    return owner


def wrapper_options(value: object, follow: Callable[[Any], Any], *, strict: bool) -> Any:
    """What an object that wraps callables was told, as plain values: options, rules, and the code that it holds.

    follow: what stands for a value, raising UnkeyableArgument for one without a stable form. Of such a one only the
    type counts, for callers add the statements that made the object; strict: it is raised.
    """
    where = {os.path.basename(code.co_filename) for code in _codes(value)}
    return _OptionReader(follow, where, strict).inside(value, 0)


def _codes(value: object) -> Iterator[types.CodeType]:
    while value is not None:
        if isinstance(value, FunctionType):
            yield value.__code__
        value = attribute(value, "__wrapped__")


class _OptionReader:
    def __init__(self, follow: Callable[[Any], Any], where: set[str], strict: bool) -> None:
        self._follow = follow
        self._strict = strict
        self._where = where
        self._visited_ids: set[int] = set()
        self._visited = 0

    def inside(self, value: Any, depth: int) -> Any:
        """What the object itself holds."""
        self._visited_ids.add(id(value))
        kind = type(value)
        if module_of(kind) == "functools" and isinstance(attribute(value, "cache_parameters"), FunctionType):
            return [value.cache_parameters(), self.of(value.__wrapped__, depth)]  # not the results that it keeps
        state = attribute(value, "__dict__")
        own: dict[str, Any] = state if type(state) is dict else {}
        items = [(name, self.of(each, depth)) for name, each in own.items() if name not in _COPIED]
        if not isinstance(value, tuple | list | dict) and kind.__flags__ & 1 << 14:  # Py_TPFLAGS_HAVE_GC
            # What a compiled object holds shows to the collector of garbage alone.
            others = [each for each in gc.get_referents(value) if each is not state and not isinstance(each, type)]
            own_ids = {id(each) for each in own.values()}
            items += [("", self.of(each, depth)) for each in others if id(each) not in own_ids]
        return items

    def of(self, value: Any, depth: int) -> Any:
        """What one thing that it holds stands for."""
        kind = type(value)
        if kind in _PLAIN:
            return "where" if kind is str and any(name in value for name in self._where) else value
        self._visited += 1
        if self._visited > _MAX_OBJECTS:
            raise UnkeyableArgument(f"it leads to more than {_MAX_OBJECTS:,} objects")
        name = f"{module_of(kind)}.{kind.__qualname__}"
        if id(value) in self._visited_ids or depth >= _DEPTH:
            return name
        again = functools.partial(self.of, depth=depth + 1)
        if isinstance(value, tuple):  # a named tuple too
            return [name, *map(again, value)]
        if kind is list:
            return [name, *map(again, value)]
        if kind is dict and _is_namespace(value):
            return [name, "namespace"]  # what is used of it counts with the code that uses it
        if kind is dict:
            return [name, *((again(key), again(each)) for key, each in value.items())]
        try:
            return self._follow(value)
        except UnkeyableArgument:
            if callable(value) and not isinstance(value, MethodType):
                return [name, self.inside(value, depth + 1)]
            if self._strict:
                raise
            return name  # a weak dictionary, a lock: what it holds comes and goes with every call


def _is_namespace(value: dict[Any, Any]) -> bool:
    """Whether a dict is that of a module: ``f.__globals__``."""
    return "__builtins__" in value and "__name__" in value
