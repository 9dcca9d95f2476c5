"""Find the function of a stage: caller and worker find it by the same name."""

from __future__ import annotations

import importlib
import inspect
import sys
from types import FunctionType
from typing import Any, NamedTuple

#: How many decorators may stand above a function.
_MOST = 100


class FunctionPlace(NamedTuple):
    """A function that a module leads to."""

    module: str
    qualname: str
    #: How often to take ``__wrapped__`` of what has that name: stages and other decorators.
    depth: int


def place_of(function: FunctionType) -> FunctionPlace | None:
    """Return where a function is; None where no name leads to it: one of a loop, or below a decorator that hides it."""
    found = _find_by_name(function.__module__, function.__qualname__)
    for depth in range(_MOST):
        if found is function:
            return FunctionPlace(function.__module__, function.__qualname__, depth)
        found = _below(found)
    return None


def find(place: FunctionPlace) -> Any:
    """Return the function at a place."""
    if place.module != "__main__":
        importlib.import_module(place.module)
    found = _find_by_name(place.module, place.qualname)
    for _ in range(place.depth):
        found = _below(found)
    return found


def _find_by_name(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = inspect.getattr_static(found, name, None)
    return found


def _below(decorated: Any) -> Any:
    return getattr(decorated, "__wrapped__", None)
