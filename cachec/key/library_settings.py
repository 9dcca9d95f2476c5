"""Live settings of libraries, as plugins report them: their digest, and how another process gets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cachec.base.hashing import Hasher
from cachec.programs.plugin import Plugin
from cachec.programs.registry import Plugins
from cachec.programs.supported_versions import Asking


class LibrarySettings(NamedTuple):
    """Those of one library. told: as ``Plugin.ambient`` says them."""

    digests: Mapping[str, str]
    #: What another process is given.
    carried: Any


def digest(plugin: Plugin) -> str:
    """What stands for the live settings of a library."""
    with Asking(plugin):
        settings = plugin.ambient()
    hasher = Hasher("ambient")
    for name, value in sorted(settings.items()):
        hasher.part(name, value.encode())
    return hasher.digest()


def snapshot(plugins: Plugins) -> dict[str, LibrarySettings]:
    """The settings of this process, by plugin."""
    found = {}
    for plugin in plugins.all():
        with Asking(plugin):
            found[plugin.name] = LibrarySettings(plugin.ambient(), plugin.ambient_values())
    return found


def apply(plugins: Plugins, settings: Mapping[str, LibrarySettings]) -> str:
    """Have this process work with these settings. Returns what can't be set, in words; empty where all is."""
    for name, wanted in settings.items():
        plugin = plugins.find(name)
        with Asking(plugin):
            now = plugin.ambient()
            if now != wanted.digests:
                plugin.set_ambient(wanted.carried)
                now = plugin.ambient()
        for setting in wanted.digests.keys() | now.keys():
            if wanted.digests.get(setting) != now.get(setting):
                return f"the setting {setting} of {name} can't be given to another process"
    return ""
