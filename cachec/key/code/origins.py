"""Where an object of this process comes from: the project, a distribution or Python; and the text that defines it."""

from __future__ import annotations

import builtins
import sys
from copy import copy
from importlib.machinery import EXTENSION_SUFFIXES
from types import CodeType, FunctionType
from typing import Any

from cachec.base.display_text import module_of
from cachec.key.code import generated_members
from cachec.key.code.code_snapshot import MISSING
from cachec.key.code.executed_source import executed_sources
from cachec.key.code.module_sources import CELLS, Locator, Sources, cell_names, is_cell
from cachec.key.code.part_graph import PartGraph, module_name, package_name
from cachec.key.code.whole_modules import ModuleUnit, Units


class Origins:
    """Of one computation. A kind is as the locator's; a namespace is what a module holds."""

    def __init__(self, graph: PartGraph, locator: Locator, sources: Sources, units: Units) -> None:
        self._graph = graph
        self._locator = locator
        self._sources = sources
        self._units = units

    def of_module(self, name: object) -> tuple[str, str]:
        """Kind and distribution of an imported module, by name; a module without a file is Python's own."""
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is None:
            above = name.rpartition(".")[0] if isinstance(name, str) else ""
            return self.of_module(above) if above else ("project", "")
        file = vars(module).get("__file__")
        if isinstance(file, str):
            return self._locator.of_file(file)
        spec = vars(module).get("__spec__")
        if getattr(spec, "origin", None) in ("built-in", "frozen"):
            return ("library", "")
        parent = sys.modules.get(name.rpartition(".")[0]) if isinstance(name, str) and spec is None else None
        if parent is not None and str(vars(parent).get("__file__")).endswith(tuple(EXTENSION_SUFFIXES)):
            return self.of_module(parent.__name__)  # an extension makes its submodules itself
        return ("project", "")

    def of_class(self, cls: type) -> tuple[str, str]:
        """As of the module that it says it is of. A class that this module does not have was made by a call, such as
        ``types.new_class``, which says so of every class that it makes: it is the project's."""
        module = module_of(cls)
        kind, distribution = self.of_module(module)
        if module == "builtins":  # which a class statement says, too, where the globals have no name of their own
            is_own = not cls.__flags__ & generated_members.HEAPTYPE or vars(builtins).get(cls.__name__) is cls
            return (kind if is_own else "project", "")
        if kind != "project" and generated_members.is_made_elsewhere(cls):
            return ("project", "")
        return (kind, distribution)

    def is_library(self, file: str) -> bool:
        """Whether a file is the standard library's."""
        return self._locator.of_file(file)[0] == "library"

    def is_foreign(self, file: str) -> bool:
        """Whether a file is another's than the project's."""
        return self._locator.of_file(file)[0] != "project"

    def unit(self, namespace: dict[str, Any]) -> ModuleUnit | None:
        """The module of a namespace, where it has source of the project."""
        file = namespace.get("__file__")
        if file is None and namespace.get("__name__") == "__main__":
            return self.cells(namespace)
        if not isinstance(file, str) or not file.endswith(".py") or self.is_foreign(file):
            return None
        unit = self._units.at(module_name(namespace), file, package_name(namespace))
        module = sys.modules.get(str(namespace.get("__name__")))
        if unit is None or module is None or vars(module) is not namespace:
            return unit
        self._graph.watch.name(namespace, "__spec__")  # a reload makes another
        executed = executed_sources().source(module, module.__name__, unit.source)
        if executed is unit.source:
            return unit
        # Its file was edited since: what made the values of this process stands in the text of then, if in any.
        if executed is not None:
            return ModuleUnit(unit.name, unit.package, executed)
        then = copy(unit)
        then.unsure = executed_sources().token(module.__name__)
        return then

    def cells(self, namespace: dict[str, Any]) -> ModuleUnit | None:
        """What was typed into this process, as a module; None where nothing was."""
        source = self._sources.cells()
        if source is None:
            return None
        self._graph.watch.value(cell_names, cell_names())
        return ModuleUnit(module_name(namespace), package_name(namespace), source)

    def of_cell(self, namespace: dict[str, Any], code: CodeType) -> ModuleUnit | None:
        """The cell alone that this code was compiled from; None where it is no cell's."""
        source = self._sources.load(code.co_filename) if is_cell(code.co_filename) else None
        return ModuleUnit(module_name(namespace), package_name(namespace), source) if source is not None else None

    def cell_of(self, cls: type, namespace: dict[str, Any]) -> ModuleUnit | None:
        """The cell that a class was made by, as its methods tell."""
        codes = [value.__code__ for value in vars(cls).values() if isinstance(value, FunctionType)]
        cells = [self.of_cell(namespace, code) for code in codes if code.co_qualname.startswith(f"{cls.__qualname__}.")]
        return cells[0] if cells else None

    def ambiguous(self, unit: ModuleUnit, variable: str) -> bool:
        """Whether cells bind a name in different ways. Which of them was run last, and which before something else
        used it, is not known."""
        ways = {unit.source.syntax(each) for each in unit.source.bindings.get(variable, ())}
        return unit.source.path == CELLS and len(ways) > 1

    def imported_library(self, name: str, value: object, namespace: dict[str, Any] | None) -> str | None:
        """For a value that can't be encoded: the library that a global was imported from, if it is still that one's."""
        file = (namespace or {}).get("__file__")
        if namespace is None or not isinstance(file, str):
            return None
        unit = self._units.at(module_name(namespace), file, package_name(namespace))
        variable = name.rpartition(".")[2]
        if unit is None or variable in unit.source.bindings:
            return None
        for use in unit.source.imports.get(variable, ()):
            origin = self._units.origin(unit, use)
            module = sys.modules.get(origin.name)
            is_library = origin.kind in ("library", "distribution") and bool(use.name) and module is not None
            if is_library and vars(module).get(use.name, MISSING) is value:
                self._graph.distributions.add(origin.distribution)
                return f"{origin.distribution or 'python'}:{origin.name}.{use.name}"
        return None

    def unknown(self, namespace: dict[str, Any], name: str) -> str:
        """Report something of which not all shows, and the statement that made it can't be told."""
        file = namespace.get("__file__")
        if isinstance(file, str) and self.is_foreign(file):
            return "unknown"  # a library's own
        return self._graph.report_unresolved(
            f"{module_name(namespace)}.{name}", "was made by a statement that can't be told"
        )
