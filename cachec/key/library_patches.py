"""Finds what a program replaced in the modules of a library: the library's files do not show it.

Looked at are the attributes that code of the project names, of the library's modules that it names: a function that a
mock replaced, a constant that was set. Limits: what the library calls itself, and its tables.
"""

from __future__ import annotations

import builtins
import opcode
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.machinery import PathFinder
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final, TypeAlias

from cachec.base.display_text import module_of
from cachec.base.hashing import digest_bytes
from cachec.key.code.code_objects import code_words
from cachec.key.trace_validation import PRESENT
from cachec.model import Read

#: Values that are compared; others count by whether the project has put them there.
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
#: An object of the library, or one that is made when it is first asked for.
_OF_LIBRARY: Final = digest_bytes(b"of the library")
_IMPORT: Final = opcode.opmap["IMPORT_NAME"]
#: The first character of what stands for a plain value.
_MARK: Final = "="

#: Module -> attribute -> what stands for its value.
Found: TypeAlias = dict[str, dict[str, str]]


def named_modules(
    project: Mapping[str, ModuleType], names: Collection[str], is_own: Callable[[str], bool]
) -> dict[str, ModuleType]:
    """The modules of libraries that code which names ``names`` may reach: as globals, by imports, as attributes."""
    found: dict[str, ModuleType] = {"builtins": builtins}
    pending: list[Any] = [vars(own).get(name) for own in project.values() for name in names & vars(own).keys()]
    pending += [sys.modules[name] for name in names & sys.modules.keys()]
    while pending:
        module: Any = pending.pop()
        name = module.__name__ if issubclass(type(module), ModuleType) else ""
        if name and name not in found and sys.modules.get(name) is module and not is_own(name):
            found[name] = sys.modules[name]
            pending += [vars(module)[each] for each in names & vars(module).keys()]
    return found


def imported_inside(codes: Collection[CodeType], is_own: Callable[[str], bool]) -> tuple[Found, set[str]]:
    """What code that ran may have taken of modules of libraries that it imports itself, as ``table`` has it; and the
    names that it has. What it takes of those that are globals counts with its key."""
    taking = (code for code in codes if _IMPORT in code.co_code[::2] or "__builtins__" in code.co_names)
    importing = {name for code in taking for name in code.co_names}
    modules = named_modules({}, importing, is_own)
    if importing.isdisjoint({"builtins", "__builtins__"}):
        del modules["builtins"]
    words = {word for code in codes for word in code_words(code) if word.isidentifier() and word[:2] != "__"}
    return table(modules, words, is_own), words


def may_make(module: ModuleType, name: str) -> bool:
    """Whether a module may have a name later that it has not: one that it makes when it is asked, or a module in it."""
    if "__getattr__" in vars(module):
        return True
    path = vars(module).get("__path__")
    return path is not None and PathFinder.find_spec(f"{module.__name__}.{name}", path) is not None


def is_replaced(name: str) -> bool:
    """Whether the program has put None or another object in the place of a module: an import fails, or finds that."""
    return name in sys.modules and not issubclass(type(sys.modules[name]), ModuleType)


def table(modules: Mapping[str, ModuleType], names: Collection[str], is_own: Callable[[str], bool]) -> Found:
    """Module -> attribute -> what stands for its value, of those that are named."""
    return {
        name: {attribute: digest(module, attribute, is_own) for attribute in names & vars(module).keys()}
        for name, module in modules.items()
    }


def digest(module: ModuleType, name: str, is_own: Callable[[str], bool]) -> str:
    """What stands for the value of an attribute; empty where the project or a mock has put it there."""
    value = vars(module).get(name)
    if isinstance(value, ModuleType):
        return _OF_LIBRARY
    if type(value) in _PLAIN:
        return f"{_MARK}{digest_bytes(f'{type(value).__name__} {value!r}'.encode('utf-8', 'surrogatepass'))}"
    if any(_is_foreign(each, module.__name__, is_own) for each in _parts(value)):
        return ""
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        where = module_of(value) if isinstance(value, type) else value.__module__
        return digest_bytes(f"{where}.{value.__qualname__}".encode())
    return _OF_LIBRARY


def read_of(module: str, name: str, found: str) -> Read:
    """The read of an attribute, which holds where the module is not imported too. found: as ``digest`` tells it."""
    return Read("library", module, f"{name}={found.removeprefix(_MARK)}", PRESENT)


def agree(mine: str | None, theirs: str | None) -> bool:
    """Whether two processes have the same in one place. None: nothing, which a library may fill when it is asked."""
    if mine is None or theirs is None:
        return (mine or theirs or _MARK)[0] != _MARK
    return mine == theirs != ""


def _parts(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, type):
        yield from list(vars(value).values())


def _is_foreign(value: Any, library: str, is_own: Callable[[str], bool]) -> bool:
    """Whether a value of a library is a function or an object of the project, or a mock."""
    value = getattr(value, "__func__", value) if isinstance(value, staticmethod | classmethod) else value
    name = value.__globals__.get("__name__") if isinstance(value, FunctionType) else module_of(type(value))
    if not isinstance(name, str) or name not in sys.modules:
        return False
    # Modules without a file are made by libraries, as those of Cython's types.
    has_file = name == "__main__" or getattr(sys.modules[name], "__file__", None) is not None
    return (name == "unittest.mock" != library) or (has_file and is_own(name))
