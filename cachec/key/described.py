"""Forms of values, with what plugins say of those of their libraries."""

from __future__ import annotations

from cachec.base.installed import Installed
from cachec.base.texts import module_of
from cachec.errors import CachecError
from cachec.key.forms import Forms
from cachec.programs.registry import Plugins
from cachec.programs.supported import Asking


class FormsWithPlugins:
    """Makes ``Forms`` of this process. What one of them learns of classes holds until some code runs."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._installed = Installed()

    def now(self) -> Forms:
        """Forms in the state of now."""
        return Forms(self._installed.is_project, self._describe)

    def _describe(self, value: object) -> object:
        kind = type(value)
        if module_of(kind) in {"builtins", "numpy"}:
            return NotImplemented
        try:
            plugin = self._plugins.for_type(kind)
            if plugin is None:
                return NotImplemented
            with Asking(plugin):
                return plugin.fingerprint(value).digest
        except CachecError:
            return NotImplemented  # it tells of results, not of arguments
