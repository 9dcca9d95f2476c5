"""The globals of the project's modules, which caller and worker compare."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final

import msgspec

from cachec.base.display_text import module_of
from cachec.base.hashing import digest_bytes
from cachec.key.builtin_forms import OF_MODULES
from cachec.key.canonical_forms import Describe, Forms
from cachec.programs.registry import Plugins


def described_by(plugins: Plugins) -> Describe:
    """What the installed plugins say of values of their libraries, for ``Forms``."""

    def describe(value: object) -> object:
        plugin = plugins.for_type(type(value))
        if plugin is not None:
            return plugin.name, plugin.fingerprint(value).digest
        answers = (each.describe(value) for each in plugins.all())
        return next((answer for answer in answers if answer is not NotImplemented), NotImplemented)

    return describe


def names_of(module: ModuleType) -> list[str]:
    """The globals of a module, but for those that only tell where it comes from."""
    return [name for name in vars(module) if name not in OF_MODULES]


def names_digest(names: Iterable[str]) -> str:
    """What stands for the names of a module's globals."""
    return digest_bytes(" ".join(sorted(names)).encode())


def table(
    modules: Mapping[str, ModuleType], forms: Forms, names: Collection[str] | None = None
) -> dict[str, dict[str, str]]:
    """Module -> global -> digest of its form, empty where it has none.

    modules: those of the project, and ``__main__``. names: only globals that are called so; None for all of them.
    """
    return {
        module: {
            name: forms.digest(value)
            for name, value in list(vars(live).items())
            if name not in OF_MODULES and (names is None or name in names)
        }
        for module, live in modules.items()
    }


def differences(
    mine: Mapping[str, Mapping[str, str]], theirs: Mapping[str, Mapping[str, str]]
) -> list[tuple[str, str]]:
    """The globals (module, name) of which ``theirs`` has not the value that ``mine`` has.

    With them are those without a form, those that only ``theirs`` has (``mine`` has deleted them), and all of a module
    that ``theirs`` lacks. A module that only ``theirs`` has says nothing.
    """
    return [
        (module, name)
        for module, own in mine.items()
        for name in {**own, **theirs.get(module, {})}
        if not own.get(name) or own[name] != theirs.get(module, {}).get(name)
    ]


#: Stands for the docstrings and annotations of all that a module defines, among its globals.
DOCUMENTATION: Final = "__doc__"
#: Names by which code reads them.
READS_DOCUMENTATION: Final = frozenset(
    {"__doc__", "getdoc", "help", "pydoc", "__annotations__", "get_annotations", "get_type_hints", "signature"}
)


def documentation_digest(module: ModuleType) -> str:
    """What stands for the docstrings and annotations of a module's functions and classes, as they are set now."""
    found = [_documentation(value) for value in _defined(module, module.__name__)]
    return digest_bytes(msgspec.json.encode([_text(module.__doc__), found]))


def _defined(holder: object, module: str) -> Iterator[Any]:
    """The functions and classes of a module, with those in the classes."""
    for name, value in sorted(vars(holder).items()):
        kind = type(value)  # an object may say of itself that it is of another
        if kind in {staticmethod, classmethod, property}:
            value = value.fget if kind is property else value.__func__
            kind = type(value)
        if kind is FunctionType and value.__module__ == module:
            yield value
        elif issubclass(kind, type) and module_of(value) == module and value.__name__ == name:
            yield value
            yield from _defined(value, module)


def _documentation(value: Any) -> tuple[str, str, dict[str, str]]:
    # From Python 3.14 on they are made when code asks for them, which would run that of the project.
    annotations = {} if hasattr(FunctionType, "__annotate__") else getattr(value, "__annotations__", {})
    texts = {name: _text(each) for name, each in annotations.items()}
    return value.__qualname__, _text(value.__doc__), texts


def _text(value: object) -> str:
    kind = type(value)
    if issubclass(kind, type):
        return f"{module_of(value)}.{value.__qualname__}"  # type: ignore[attr-defined] # a class
    return f"{kind.__qualname__} {value!r}" if kind in {str, int, float, bool, type(None)} else kind.__qualname__
