"""Modules, and names of a package, that are imported when they are first used (PEP 562).

A module takes a third of a millisecond to import, which the first hit of a process would spend on what only misses, or
rare results, need.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    module: dict[str, Any], homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a module. module: its ``globals()``. homes: where its names are, by module."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        module[name] = value  # the next look-up finds it without coming here
        return value

    def names() -> list[str]:
        return sorted({*module, *home_of})

    return get, names


class later:  # noqa: N801 - it replaces the name of the module
    """A module that is imported on the first use of one of its names; each name is then cached.

    Type checkers see the import beside it: ``if TYPE_CHECKING: from package import module``, ``else: module =
    later("package.module")``. Or it stands in ``sys.modules`` while another package is imported that needs it seldom.
    """

    __spec__ = None  # the import system reads it from the entry in ``sys.modules``

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        modules: dict[str, object] = sys.modules  # type: ignore[assignment]
        if modules.get(self.__name__) is self:
            del modules[self.__name__]
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)
        return value
