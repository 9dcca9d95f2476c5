"""Code that reaches imported modules by computed names, which raise no event.

Nothing shows which of them such code takes. So all modules of the project count that are there, and where code asks
which there are, that too.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from enum import Enum
from types import CodeType
from typing import Any

#: Names by which code gets at the globals of a module that no name of its own leads to.
_REACHING = frozenset({"__import__", "__globals__", "f_globals", "getmodule", "locate", "safeimport"})
_MODULES = "modules"


class Reach(Enum):
    """What of the imported modules code may take."""

    NAMED = 0  #: those that it names
    ANY = 1  #: any of them; one that is not there would be imported, which shows
    PRESENT = 2  #: any of them, and whether one is there


def reach(code: CodeType, namespace: Mapping[str, Any]) -> Reach:
    """What code that ran in a namespace may have taken, as far as its names and its texts tell."""
    names = {*code.co_names, *code.co_freevars, *(each for each in code.co_consts if isinstance(each, str))}
    values = [namespace.get(each) for each in names]
    asks_sys = "sys" in names or any(each is sys for each in values)
    if any(each is sys.modules for each in values) or (_MODULES in names and asks_sys):
        return Reach.PRESENT
    return Reach.NAMED if _REACHING.isdisjoint(names) else Reach.ANY


def is_importer(value: object) -> bool:
    """Whether a value is the function behind ``import``: whoever has it imports by whatever name."""
    return value is builtins.__import__
