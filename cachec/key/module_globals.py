"""The globals of the project's modules, which caller and worker compare."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import ModuleType

from cachec.base.hashing import digest_bytes
from cachec.key.canonical_forms import OF_MODULES, Describe, Forms
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
