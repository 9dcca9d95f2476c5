"""What the plugins say of IR, for a person. Every fault of a plugin is a PluginError here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cachec.errors import PluginError
from cachec.programs.plugin import Reproducer
from cachec.programs.registry import installed_plugins


def difference(format: str, before: bytes, after: bytes) -> str:
    """What differs between the IR of two programs of this format, in words. Raises PluginError."""
    name = format.partition(":")[0]
    with _naming_request(name):
        return installed_plugins().find(name).difference(before, after)


def title(format: str, ir: bytes) -> str:
    """The name that a program of this format has in its IR; empty for none. Raises PluginError."""
    name = format.partition(":")[0]
    with _naming_request(name):
        return installed_plugins().find(name).title(ir)


def suffix(format: str) -> str:
    """What the name of a file with IR of this format ends with. Raises PluginError."""
    name = format.partition(":")[0]
    with _naming_request(name):
        return installed_plugins().find(name).suffix(format)


def reproducers(command: Sequence[str], data: bytes) -> tuple[list[Reproducer], list[str]]:
    """The forms that the plugins know for an input of a command with its options inside, and why a plugin says none."""
    forms: list[Reproducer] = []
    refused: list[str] = []
    try:
        plugins = installed_plugins().all()
    except PluginError as error:
        return [], [str(error)]
    for plugin in plugins:
        try:
            with _naming_request(plugin.name):
                form = plugin.reproducer(command, data)
        except PluginError as error:
            refused.append(str(error))
            continue
        if form is not None:
            forms.append(form)
    return forms, refused


@contextmanager
def _naming_request(name: str) -> Iterator[None]:
    try:
        yield
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(f"plugin {name!r} fails: {type(error).__name__}: {error}") from error
