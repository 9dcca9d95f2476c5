"""Canonical forms of values, with those that plugins define for the types of their libraries."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from functools import lru_cache
from types import ModuleType

from cachec.base.anchors import project_of
from cachec.base.installed_folders import InstalledFolders
from cachec.key.canonical_forms import Forms, OwnModules
from cachec.key.module_globals import described_by, table
from cachec.key.random_generators import shared_generator
from cachec.programs.program import Program
from cachec.programs.registry import Plugins
from cachec.weights import WeightSet
from cachec.weights.manifest import Manifest


def _project_of(module: object) -> str:
    file = getattr(module, "__file__", None)
    return _folder_of(os.path.dirname(os.path.abspath(file))) if isinstance(file, str) else ""


@lru_cache(maxsize=1024)
def _folder_of(folder: str) -> str:
    return project_of(os.path.join(folder, "module"))


class FormsWithPlugins:
    """Makes ``Forms`` of this process. What one of them learns of classes holds until some code runs."""

    def __init__(self, plugins: Plugins) -> None:
        self._of_plugins = described_by(plugins)
        self._installed = InstalledFolders()
        self._own_modules = OwnModules()

    def now(self, module: object = None, *, has_fills: bool = True) -> Forms:
        """Forms in the state of now. module: whose globals they are of; paths below its project count from there.

        has_fills: as ``Forms``."""
        return Forms(
            self._installed.is_project,
            self._describe,
            _project_of(module),
            has_fills=has_fills,
            own_modules=self._own_modules,
        )

    def module_path(self) -> list[tuple[str, str]]:
        """The project's folders on ``sys.path``, each with its place among them and their number.

        The folder of console scripts is none: it has no modules.
        """
        scripts = sysconfig.get_path("scripts")
        folders = [path for path in map(os.path.abspath, sys.path) if path != scripts]
        folders = list(dict.fromkeys(path for path in folders if self._installed.is_project(path)))
        return [(path, f"{place} of {len(folders)}") for place, path in enumerate(folders)]

    def is_project_module(self, name: str) -> bool:
        """Whether what is imported under a name is a module of the project, and no object that was put in its place."""
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
        return isinstance(file, str) and self._installed.is_project(file)

    def _describe(self, value: object) -> object:
        """Of cachec's own values that are fetched when they are looked at, what they are; else what plugins say."""
        if isinstance(value, Program):
            return "program", value.topology
        if isinstance(value, WeightSet):
            return "weights", value.spec_digest
        if isinstance(value, Manifest):
            return "manifest", value.digest
        if (place := shared_generator(value)) is not None:
            return "generator", place  # its state counts for runs that use it
        return self._of_plugins(value)

    def table(self, modules: Mapping[str, ModuleType]) -> dict[str, dict[str, str]]:
        """Module -> global -> digest of its form, empty where it has none; of modules of the project."""
        forms: dict[str, Forms] = {}
        found = {}
        for name, module in modules.items():
            folder = _project_of(module)
            if folder not in forms:
                forms[folder] = self.now(module)
            found.update(table({name: module}, forms[folder]))
        return found
