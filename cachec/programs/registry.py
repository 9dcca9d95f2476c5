"""Finds the installed plugins, and the one for a type, a distribution or an artifact."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from cachec.base.display_text import module_of
from cachec.base.distributions import Distributions
from cachec.errors import PluginError, UnsupportedVersion

if TYPE_CHECKING:
    from pathlib import Path

    from cachec.programs.plugin import Plugin

#: The entry-point group under which a package offers its plugin object as ``module:attribute``.
GROUP = "cachec.plugins"


class Plugins:
    """The plugins of this environment, imported together when one is first asked for.

    A plugin's own module is small and imports no compiler; that is part of the protocol. One that can't be imported is
    an error and not left out, because its ambient state would then be missing from keys.
    """

    def __init__(self, distributions: Distributions, store: Path | None = None) -> None:
        """store: the folder in which verdicts of self-tests are remembered; see ``supported.why_unsupported``."""
        self._distributions = distributions
        self._store = store
        self._lock = threading.Lock()
        self._all: tuple[Plugin, ...] | None = None
        self._by_type: dict[type, Plugin | None] = {}
        self._by_distributions: dict[frozenset[str], tuple[Plugin, ...]] = {}
        self._unsupported: dict[str, str] = {}

    def all(self) -> tuple[Plugin, ...]:
        """Every installed plugin, sorted by name. Raises PluginError where one can't be imported."""
        if self._all is None:
            with self._lock:
                offered = self._distributions.plugin_entry_points(GROUP)
                self._all = tuple(_load(name, offered[name]) for name in sorted(offered))
        return self._all

    def packages(self) -> frozenset[str]:
        """The names of the packages that installed plugins are in; none is imported."""
        offered = self._distributions.plugin_entry_points(GROUP)
        return frozenset(target.partition(":")[0].partition(".")[0] for target in offered.values())

    def declares_programs(self, module: str) -> bool:
        """Whether cachec or a plugin answers for the programs that a module starts: their own, or one of a library."""
        if module.partition(".")[0] in {"cachec", *self.packages()}:
            return True
        places = (place for plugin in self.all() for place in plugin.programs)
        return any(f"{module}.".startswith(f"{place}.") for place in places)

    def find(self, name: str) -> Plugin:
        """Return the plugin of that name. Raises PluginError for an unknown one."""
        for plugin in self.all():
            if plugin.name == name:
                return plugin
        known = ", ".join(plugin.name for plugin in self.all()) or "none"
        raise PluginError(f"no plugin is named {name!r} (installed: {known}); install the package that provides it")

    def for_type(self, cls: type) -> Plugin | None:
        """The plugin that handles values of this class, by the names in its method resolution order.

        Raises UnsupportedVersion where it can't use the installed release of its library.
        """
        try:
            return self._by_type[cls]
        except KeyError:
            names = {f"{module_of(base)}.{base.__qualname__}" for base in cls.__mro__}
            found = next((plugin for plugin in self.all() if not names.isdisjoint(plugin.types)), None)
            self._check(() if found is None else (found,))
            self._by_type[cls] = found
            return found

    def for_distributions(self, names: Collection[str]) -> tuple[Plugin, ...]:
        """Return the plugins with ``ambient`` for any of these distributions. Raises UnsupportedVersion as above."""
        wanted = frozenset(names)
        plugins = self._by_distributions.get(wanted)
        if plugins is None:
            plugins = tuple(plugin for plugin in self.all() if not wanted.isdisjoint(plugin.distributions))
            self._check(plugins)
            self._by_distributions[wanted] = plugins
        return plugins

    def _check(self, plugins: Iterable[Plugin]) -> None:
        """Raise UnsupportedVersion where a plugin can't use its library. The releases are compared once a process."""
        from cachec.programs.supported_versions import why_unsupported

        for plugin in plugins:
            if plugin.name not in self._unsupported:
                self._unsupported[plugin.name] = why_unsupported(plugin, self._distributions, self._store)
            if self._unsupported[plugin.name]:
                raise UnsupportedVersion(self._unsupported[plugin.name])


@lru_cache(maxsize=1)
def installed_plugins() -> Plugins:
    """Return the plugins of this process, for plain functions. Cached, because finding them takes a millisecond."""
    return Plugins(Distributions())


def _load(name: str, target: str) -> Plugin:
    from cachec.base.entry_points import load_object
    from cachec.programs.plugin import Plugin  # with all that one is given; most commands ask for no plugin

    plugin: Plugin = load_object(f"plugin {name!r}", target, "plugin", Plugin)
    return plugin
