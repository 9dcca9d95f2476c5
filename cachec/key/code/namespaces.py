"""Modules of this process: what their names refer to, and which statements made it."""

from __future__ import annotations

import ast
import functools
import gc
import os
import sys
import types
from collections.abc import Mapping
from importlib.machinery import PathFinder
from types import CodeType, FunctionType, ModuleType
from typing import Any

from cachec.base.display_text import module_of
from cachec.base.hashing import Hasher, digest_bytes
from cachec.base.instances import attribute
from cachec.key.code.code_snapshot import MISSING
from cachec.key.code.deferred_imports import DeferredImports
from cachec.key.code.library_objects import is_mock, is_plain, is_put
from cachec.key.code.module_sources import Locator, is_cell
from cachec.key.code.normalized_syntax import docstrings, documentation
from cachec.key.code.origins import Origins
from cachec.key.code.part_graph import PartGraph, file_part, module_name, package_name
from cachec.key.code.referenced_values import Live, ReferencedValues, wraps
from cachec.key.code.scopes import Chain, ImportUse
from cachec.key.code.whole_modules import ModuleUnit, Units
from cachec.key.describe import name_of_class

#: What every module has: its name counts as in labels, and its place on this machine not at all.
_MODULE_NAMES = frozenset(
    {
        *("__name__", "__file__", "__doc__", "__spec__", "__package__", "__path__", "__loader__", "__builtins__"),
        "__cached__",
    }
)


class Namespaces:
    """The part of one computation that looks up names of modules."""

    def __init__(
        self,
        graph: PartGraph,
        locator: Locator,
        units: Units,
        origins: Origins,
        static: DeferredImports,
        values: ReferencedValues,
        live: Live,
    ) -> None:
        self._graph = graph
        self._locator = locator
        self._units = units
        self._origins = origins
        self._static = static
        self._values = values
        self._live = live
        #: By module, name, value and depth: the digest of its statements, empty while they are followed.
        self._stated: dict[tuple[int, str, int, int], str] = {}

    def _label(self, namespace: dict[str, Any]) -> str:
        """The name of a module in labels; a second module of the same name gets a number."""
        name = module_name(namespace)
        label, _ = self._graph.label(("namespace", id(namespace)), f"namespace {name}", namespace)
        return label.removeprefix("namespace ")

    def stands(self, namespace: dict[str, Any], chain: Chain, *, lenient: bool) -> str:
        """What a name that code of a module takes from outside of itself stands for now."""
        watch, root = self._graph.watch, chain[0]
        if root in _MODULE_NAMES:
            return self._of_every_module(namespace, root)
        value = watch.name(namespace, root)
        if value is not MISSING:
            return self.resolve_value(value, chain[1:], f"{self._label(namespace)}.{root}", namespace, lenient)
        builtins = namespace.get("__builtins__")
        scope: Mapping[str, Any] = vars(builtins) if isinstance(builtins, ModuleType) else builtins or {}
        value = watch.name(scope, root)
        if value is MISSING:
            return "absent"
        if isinstance(value, types.BuiltinFunctionType) or (isinstance(value, type) and module_of(value) == "builtins"):
            return "builtin"
        return self._live.reference(value, f"builtins.{root}", lenient=lenient)

    def _of_every_module(self, namespace: dict[str, Any], name: str) -> str:
        """What stands for a name that every module has: the documentation as it is, all else as that module's."""
        text = documentation(self._graph.watch.name(namespace, name)) if name == "__doc__" else b""
        return f"{name} of {module_name(namespace)} {digest_bytes(text)}"

    def resolve_value(
        self, value: object, rest: Chain, name: str, namespace: dict[str, Any] | None, lenient: bool
    ) -> str:
        """What a value with the attributes ``rest`` stands for. name: of the value."""
        try:
            return self._resolve_value(value, rest, name, namespace, lenient)
        except Exception as error:  # noqa: BLE001 - user code may raise any
            return self._graph.report_exception(f"{name} ({name_of_class(value)})", error)

    def _resolve_value(
        self, value: object, rest: Chain, name: str, namespace: dict[str, Any] | None, lenient: bool
    ) -> str:
        if value is MISSING:
            return "unbound"
        if isinstance(value, ModuleType):
            return self.module(value, rest, lenient=lenient)
        reference = self._live.code(value, lenient=lenient)
        if reference is None:
            made = functools.partial(self._origins.imported_library, name, value, namespace)
            reference = self._values.part(value, name, lenient=lenient, fallback=made)
        if namespace is not None and self._values.shows_not_all(value, name):
            return f"{reference} made by {self._statements(namespace, name.rpartition('.')[2], 8, value)}"
        return reference

    def module(self, module: ModuleType, rest: Chain, *, lenient: bool) -> str:
        """What attributes of a module stand for; the whole module where none is named."""
        graph, namespace = self._graph, vars(module)
        file = namespace.get("__file__")
        kind, distribution = self._origins.of_module(namespace.get("__name__"))
        if isinstance(file, str):
            kind, distribution = self._locator.of_file(file)
        name = module_name(namespace)
        graph.distributions.add(distribution)
        if kind != "project":
            return f"{distribution or 'python'}:{name}{self._of_library(namespace, rest)}"
        if isinstance(file, str) and not file.endswith(".py"):
            return self._extension(name, file)
        if not rest or rest[0] == "__dict__":
            label = self.whole(namespace, file if isinstance(file, str) else "", dynamic=True)
            self.all_names(namespace, modules=False)
            return label
        if isinstance(file, str):
            self.reach_module(namespace, self._units.at(name, file, package_name(namespace)))
        if rest[0] in _MODULE_NAMES:
            return self._of_every_module(namespace, rest[0])
        value = graph.watch.name(namespace, rest[0])
        if value is MISSING:
            if "__path__" in namespace and self._locator.find(f"{name}.{rest[0]}").kind != "absent":
                use = ImportUse(f"{name}.{rest[0]}", 0, "", rest[1:], False)
                self._static.follow_import(use, "", name, lenient=lenient)
                return f"module {name}.{rest[0]}"
            if "__getattr__" in namespace:
                return self.whole(namespace, file if isinstance(file, str) else "", dynamic=False)
            return "absent"
        return self.resolve_value(value, rest[1:], f"{self._label(namespace)}.{rest[0]}", namespace, lenient)

    def _of_library(self, namespace: dict[str, Any], rest: Chain, *, is_part: bool = False) -> str:
        """What a name of a library's module stands for beside what the library says of it: what the project put in its
        place, and a plain value, which anybody may set. Empty for all else, and for names that all modules have.
        is_part: the module may be imported only where it is asked for."""
        value = MISSING if not rest or rest[0].startswith("__") else self._graph.watch.name(namespace, rest[0])
        if isinstance(value, ModuleType):
            reference = self.module(value, rest[1:], lenient=True)
            if value.__name__ != f"{namespace.get('__name__')}.{rest[0]}":
                return f" {reference}"
            return self._of_library(vars(value), rest[1:], is_part=True)
        if value is MISSING:
            return self._not_there(namespace, rest)
        if is_mock(value):
            self._graph.refuse_mock(f"{rest[0]} of {namespace.get('__name__')}")
        # That of typing, which 3.13 has, makes no class and no function.
        is_lazy = is_part or ("__getattr__" in namespace and namespace.get("__name__") != "typing")
        if self._is_code(value, is_lazy=is_lazy):
            return f".{rest[0]} {self._live.code(value, lenient=True)}"
        if is_plain(value):
            return f".{rest[0]} {digest_bytes(repr(value).encode())}"
        if is_put(value, self._locator):
            where = f"{namespace.get('__name__')}.{rest[0]}"
            return f".{rest[0]} {self._live.reference(value, where, lenient=False)}"
        return ""

    def _not_there(self, namespace: dict[str, Any], rest: Chain) -> str:
        """What stands for a name that a library's module has not: it may make it when it is asked for, or be a package
        that has a module of that name, imported or not."""
        if not rest or rest[0].startswith("__") or "__getattr__" in namespace:
            return ""
        path = namespace.get("__path__")
        if path is not None and PathFinder.find_spec(f"{module_name(namespace)}.{rest[0]}", path) is not None:
            return ""
        return f".{rest[0]} absent"

    def _is_code(self, value: object, *, is_lazy: bool) -> bool:
        """Whether a name of a library's module is code of which the project may have set something, or its own.
        is_lazy: the module may have made it only now, and then nothing stood for it before."""
        if isinstance(value, FunctionType):
            own = self._locator.is_own(value)
            return own or not (is_lazy or value.__closure__ or "__wrapped__" in value.__dict__)
        if not isinstance(value, type):
            return False
        own = self._origins.of_module(module_of(value))[0] == "project"
        return own or not (is_lazy or self._origins.of_class(value)[0] == "project")

    def _extension(self, name: str, file: str) -> str:
        label, first = self._graph.label(("file", file), name)
        if first:
            try:
                file_part(self._graph, label, file)
            except OSError as error:
                return self._graph.report_unresolved(f"module {name}", f"can't be read ({error.strerror})")
        return label

    def reach_module(self, namespace: dict[str, Any], unit: ModuleUnit | None) -> None:
        """Once a module that something was taken from: its whole where that is the unit, and its idle imports."""
        if unit is None:
            return
        # Each cell of a notebook is a text of its own, all of one namespace.
        _, first = self._graph.label(
            ("reached live", id(namespace), unit.source.path), f"reached {unit.name}", namespace
        )
        if first:
            if unit.whole and namespace.get("__name__") == "__main__":
                self._script(namespace, unit)
            elif unit.whole:
                self.whole(namespace, unit.source.path, dynamic=False)
            self._static.effects(unit)
            self._static.idle(unit)
            whole = self._origins.cells(namespace) if is_cell(unit.source.path) else unit
            self._static.asides(whole or unit)

    def whole(self, namespace: dict[str, Any], file: str, *, dynamic: bool) -> str:
        """Take a whole module, and leniently everything that its names reach.

        dynamic: a name of it may be looked up by the stage itself, so no weight set may be among them.
        """
        graph, name = self._graph, module_name(namespace)
        if dynamic:
            for each, value in list(namespace.items()):
                self._values.refuse_weights(value, f"{name}.{each}")
        label, first = graph.label(("whole live", id(namespace)), name, namespace)
        if not first:
            return label
        unit = self._units.at(name, file, package_name(namespace)) if file else None
        hasher = Hasher("module")
        if unit is None:
            hasher.part("no source", b"")
            graph.report_unresolved(f"module {name}", "is used as a whole and has no source")
            graph.part(label, hasher, "no source")
            return label
        source = unit.source
        hasher.part("syntax", source.syntax(source.tree))
        graph.mentions(source.syntax(source.tree))
        graph.covers(source, source.tree, label)
        graph.aside("documentation", label, lambda: documentation(docstrings(source.tree)))
        uses = source.uses(source.tree)

        def reach() -> None:
            chains = [chain for chain in uses.refs if chain[0] in namespace]
            chains += [(root,) for root in source.bindings if root in namespace]
            self.follow(namespace, chains, hasher)
            self._static.follow(uses, unit.package, name, lenient=True)
            graph.part(label, hasher, f"{os.path.basename(file)}, {unit.whole or 'used as a whole'}")

        graph.later(reach, lenient=True)
        if "*" in source.imports:
            self.all_names(namespace, modules=False)
        return label

    def _script(self, namespace: dict[str, Any], unit: ModuleUnit) -> None:
        """Of the script that is running, what its statements hand over; the rest counts where the stage reaches it."""
        hasher, source = Hasher("script"), unit.source
        for statement in unit.handing:
            hasher.part("syntax", source.syntax(statement))
            self._graph.mentions(source.syntax(statement))
            chains = [each for each in source.uses(statement).refs if each[0] in namespace]
            if isinstance(statement, ast.ClassDef) and statement.name in namespace:
                chains.append((statement.name,))
            chains = [each for each in chains if not self._in_flux(unit, namespace[each[0]], each[0])]
            self._graph.later(functools.partial(self.follow, namespace, chains, Hasher("names")), lenient=True)
        if unit.handing:
            # Each cell of a notebook is a script of its own.
            label, _ = self._graph.label(("script", id(namespace), source.path), f"{unit.name}.<script>", namespace)
            self._graph.part(label, hasher, f"{os.path.basename(source.path)}, what it hands over")

    def _in_flux(self, unit: ModuleUnit, value: object, name: str) -> bool:
        """Whether a name of the script that is running now is plain data of its own: the script may be in a loop that
        changes it between two calls. Where a function reads it, it counts with that function.
        """
        return (
            name in unit.source.bindings
            and name not in unit.source.imports
            and not isinstance(value, (FunctionType, type, ModuleType))
            and not wraps(value)
            and not any(isinstance(each, ast.FunctionDef | ast.ClassDef) for each in unit.source.bindings[name])
        )

    def follow(self, namespace: dict[str, Any], chains: list[Chain], hasher: Hasher) -> None:
        """Follow names of a module leniently, and feed what each stands for."""
        for chain in dict.fromkeys(chains):
            value = self._graph.watch.name(namespace, chain[0])
            if chain[0] in _MODULE_NAMES or (len(chain) == 1 and isinstance(value, ModuleType)):
                continue
            where = f"{self._label(namespace)}.{chain[0]}"
            reference = self.resolve_value(value, chain[1:], where, namespace, lenient=True)
            hasher.part(f"name {'.'.join(chain)}", reference.encode())

    def all_names(self, namespace: dict[str, Any], *, modules: bool) -> None:
        """Follow every name that a module has now. modules: the modules among them too, each as a whole."""
        graph = self._graph
        name = module_name(namespace)
        wanted = f"{name}.<{'names and modules' if modules else 'names'}>"
        label, first = graph.label(("names", id(namespace), modules), wanted, namespace)
        if not first:
            return

        def reach() -> None:
            hasher = Hasher("names")
            graph.watch.mapping(namespace)
            names = [each for each in namespace if not each.startswith("__")]
            self.follow(namespace, [(each,) for each in names], hasher)
            if modules:
                for each in names:
                    if isinstance(namespace[each], ModuleType):
                        hasher.part(f"module {each}", self.module(namespace[each], (), lenient=True).encode())
            graph.part(label, hasher, f"every name of {name}")

        graph.later(reach, lenient=True)

    def _statements(self, namespace: dict[str, Any], variable: str, depth: int, value: object = None) -> str:
        """The digest of the statements that bind a global, which are followed; through the modules that hand it on.
        value: the global itself, which the statement of one cell made. Of two that are made of each other, the second
        has the first one's name for it, whose statements are being followed."""
        key = id(namespace), variable, id(value), depth
        if key not in self._stated:
            self._stated[key] = ""
            self._stated[key] = self._of_statements(namespace, variable, depth, value)
        return self._stated[key] or f"in a circle {self._label(namespace)}.{variable}"

    def _of_statements(self, namespace: dict[str, Any], variable: str, depth: int, value: object) -> str:
        unit = self._origins.unit(namespace)
        if unit is None:
            return self._origins.unknown(namespace, variable)
        statements = unit.source.bindings.get(variable, [])
        if self._origins.ambiguous(unit, variable):
            code = attribute(attribute(value, "__wrapped__"), "__code__")
            cell = self._origins.of_cell(namespace, code) if isinstance(code, CodeType) else None
            statements = cell.source.bindings.get(variable, []) if cell is not None else []
            if cell is None or len(statements) != 1:
                return self._origins.unknown(namespace, variable)
            unit = cell
        hasher = Hasher("statements")
        hasher.part("unsure", unit.unsure)
        for statement in statements:
            hasher.part("syntax", unit.source.syntax(statement))
            run = used = unit.source.uses(statement).refs
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                run = unit.source.decorator_refs(statement)  # the rest runs when it is called
            for chain in used:
                if chain[0] in namespace and chain[0] != variable:
                    if chain in run:
                        self.check_one(namespace, chain[0], value)
                    where = f"{self._label(namespace)}.{chain[0]}"
                    reference = self.resolve_value(namespace[chain[0]], chain[1:], where, namespace, lenient=True)
                    hasher.part(f"name {'.'.join(chain)}", reference.encode())
        for use in unit.source.imports.get(variable, ()):
            module = sys.modules.get(self._units.origin(unit, use).name)
            if isinstance(module, ModuleType) and depth:
                hasher.part("import", self._statements(vars(module), use.name, depth - 1).encode())
        return hasher.digest()

    def check_one(self, namespace: dict[str, Any], name: str, value: object = None) -> None:
        """Report a name of cells that is bound in different ways, where something was made of it of which not all
        shows. value: what was made; what it wraps shows."""
        unit = self._origins.unit(namespace)
        if unit is not None and self._origins.ambiguous(unit, name):
            shown = [attribute(value, "__wrapped__"), *gc.get_referents(value)]
            if not any(each is namespace[name] for each in shown):
                self._origins.unknown(namespace, name)

    def maker(self, function: FunctionType) -> str:
        """The digest of the outermost function that made this one, which is followed: what it told to what it made."""
        namespace, head = function.__globals__, function.__qualname__.partition(".<locals>")[0]
        unit = self._origins.unit(namespace)
        node = unit.source.definition(head) if unit is not None else None
        if (
            unit is not None
            and node is None
            and (cell := self._origins.of_cell(namespace, function.__code__)) is not None
        ):
            unit, node = cell, cell.source.definition(head)
        if unit is None or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self._origins.unknown(namespace, head)
        hasher = Hasher("maker")
        hasher.part("syntax", unit.source.syntax(node) + unit.unsure)
        self.follow(namespace, [each for each in unit.source.uses(node).refs if each[0] in namespace], hasher)
        return hasher.digest()
