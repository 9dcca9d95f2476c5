"""Code reached through live objects: functions, classes and values, as they are in this process."""

from __future__ import annotations

import ast
import collections
import functools
import gc
import os
import re
import sys
import types
from collections.abc import Callable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from types import CodeType, FunctionType, ModuleType
from typing import Any

from cachec.base.hashing import Hasher, digest_bytes
from cachec.key.code import classes
from cachec.key.code.codeobjects import code_digest, code_uses, code_words, nested
from cachec.key.code.executed import executed
from cachec.key.code.graph import Graph, file_part, module_name, package_name
from cachec.key.code.library import attribute
from cachec.key.code.modules import CELLS, Locator, Sources, cell_names, is_cell
from cachec.key.code.scopes import Chain, ImportUse
from cachec.key.code.static import Static
from cachec.key.code.syntax import docstrings
from cachec.key.code.units import Unit, Units
from cachec.key.code.values import Values, wraps
from cachec.key.code.watch import MISSING

_SKIPPED_ATTRIBUTES = frozenset(
    {
        *("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__qualname__", "__name__"),
        *("__firstlineno__", "__hash__", "__static_attributes__", "__dataclass_fields__"),
        *("__dataclass_params__", "__match_args__", "__abstractmethods__", "_abc_impl", "__parameters__"),
        *("__orig_bases__", "__type_params__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
    }
)
#: Where an instance holds a field: the class says which there are.
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType, type(collections.namedtuple("_", "x").x))  # type: ignore[attr-defined]
#: What every module has: its name counts as in labels, and its place on this machine not at all.
_MODULE_NAMES = frozenset(
    {
        *("__name__", "__file__", "__doc__", "__spec__", "__package__", "__path__", "__loader__", "__builtins__"),
        "__cached__",
    }
)
_DYNAMIC = frozenset({"globals", "eval", "exec"})


class Walk:
    """One computation of the code that a stage reaches."""

    def __init__(
        self,
        graph: Graph,
        locator: Locator,
        sources: Sources,
        units: Units,
        encode_value: Callable[[object, str], bytes],
    ) -> None:
        self._graph = graph
        self._locator = locator
        self._sources = sources
        self._units = units
        self._static = Static(graph, locator, sources, units, self)
        self._values = Values(graph, self, encode_value)

    # --- what the other modules ask for

    def as_imported(self, value: object, name: str, made: bytes = b"") -> None:
        """Take a value as it is at run time, because its source does not tell (see ``static``). made: what made it, for
        one of which not all shows."""
        label, first = self._graph.label(("as imported", name, id(value)), f"{name} (as imported)", value)
        if first:
            hasher = Hasher("as imported")
            said = self.reference(value, label, lenient=True)
            hasher.part("value", said.encode())
            if said == "by source" or self._shows_not_all(value, label):
                hasher.part("made", made)
            self._graph.part(label, hasher, "differs from its source file")

    def refuse_weights(self, value: object, name: str) -> None:
        """Raise CapturedWeights for a weight set, a weight, or a container that holds one."""
        self._values.refuse_weights(value, name)

    def origin_of_module(self, name: object) -> tuple[str, str]:
        """Kind and distribution of an imported module, by name; a module without a file is Python's own."""
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is None:
            above = name.rpartition(".")[0] if isinstance(name, str) else ""
            return self.origin_of_module(above) if above else ("project", "")
        file = vars(module).get("__file__")
        if isinstance(file, str):
            return self._locator.of_file(file)
        spec = vars(module).get("__spec__")
        if getattr(spec, "origin", None) in ("built-in", "frozen"):
            return ("library", "")
        parent = sys.modules.get(name.rpartition(".")[0]) if isinstance(name, str) and spec is None else None
        if parent is not None and str(vars(parent).get("__file__")).endswith(tuple(EXTENSION_SUFFIXES)):
            return self.origin_of_module(parent.__name__)  # an extension makes its submodules itself
        return ("project", "")

    def origin_of_class(self, cls: type) -> tuple[str, str]:
        """As of the module that it says it is of. A class that this module does not have was made by a call, such as
        ``types.new_class``, which says so of every class that it makes: it is the project's."""
        kind, distribution = self.origin_of_module(cls.__module__)
        if kind != "project" and classes.is_made_elsewhere(cls):
            return ("project", "")
        return (kind, distribution)

    def _is_library(self, file: str) -> bool:
        return self._locator.of_file(file)[0] == "library"

    # --- values

    def reference(self, value: object, name: str, *, lenient: bool) -> str:
        """What stands for a value in the part that refers to it; follows what it reaches. ``name`` labels its part."""
        label = self.code(value, lenient=lenient)
        return label if label is not None else self._values.part(value, name, lenient=lenient)

    def code(self, value: object, *, lenient: bool) -> str | None:
        """The label of a function, class or module, which is followed; None for every other value."""
        if isinstance(value, FunctionType):
            return self.function(value, lenient=lenient)
        if isinstance(value, type):
            return self.cls(value, lenient=lenient)
        if isinstance(value, ModuleType):
            return self.module(value, (), lenient=lenient)
        return None

    # --- functions

    def function(self, function: FunctionType, *, lenient: bool) -> str:
        """The label of a function; what it reaches is looked at later."""
        module = module_name(function.__globals__)
        name = f"{module}.{function.__qualname__}"
        kind, distribution = self._locator.of_file(function.__code__.co_filename)
        if distribution:
            self._graph.distributions.add(distribution)
        outside = kind != "project"
        if outside and not function.__closure__ and "__wrapped__" not in function.__dict__:
            return f"{distribution or 'python'}:{name}"
        label, _ = self._graph.label(id(function), name, function)
        # A function of a library may wrap one of the project: what it holds is followed, the rest of it is not.
        self._graph.look(label, lambda lenient: self._function(function, label, outside, lenient), lenient=lenient)
        return label

    def _function(self, function: FunctionType, label: str, outside: bool, lenient: bool) -> None:
        graph = self._graph
        graph.watch.function(function)
        hasher = Hasher("function")
        code = function.__code__
        detail = os.path.basename(code.co_filename)
        if not outside:
            detail = self._body(function, label, hasher, lenient)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            value = graph.watch.cell(cell)
            where = f"{label}.<closure>/{name}"
            said = "unbound" if value is MISSING else self.code(value, lenient=lenient)
            said = said or self._values.part(value, where, lenient=lenient or outside)
            if not outside and self._shows_not_all(value, where):
                said = f"{said} made by {self._maker(function)}"
            hasher.part(f"closure {name}", said.encode())
        wrapped_lenient, lenient = lenient, lenient or outside
        count = code.co_argcount
        defaults = function.__defaults__ or ()
        for name, value in zip(code.co_varnames[count - len(defaults) : count], defaults, strict=True):
            hasher.part(f"default {name}", self.reference(value, f"{label}.<default>/{name}", lenient=lenient).encode())
        for name, value in sorted((function.__kwdefaults__ or {}).items()):
            hasher.part(f"default {name}", self.reference(value, f"{label}.<default>/{name}", lenient=lenient).encode())
        for name, value in sorted(function.__dict__.items()):
            if name in _SKIPPED_ATTRIBUTES:
                continue  # what functools.wraps and the like copy: names and documentation
            said = self.code(value, lenient=wrapped_lenient or name != "__wrapped__")
            said = said or self._values.part(value, f"{label}.{name}", lenient=True)
            hasher.part(f"attribute {name}", said.encode())
        graph.part(label, hasher, detail)

    def _body(self, function: FunctionType, label: str, hasher: Hasher, lenient: bool) -> str:
        """Feed what a function of the project says and refers to; returns the place for a person."""
        graph, code, namespace = self._graph, function.__code__, function.__globals__
        source = self._sources.load(code.co_filename)
        node = source.match(code) if source is not None else None
        package = package_name(namespace)
        unit = self._units.at(module_name(namespace), code.co_filename, package) if source is not None else None
        if source is not None and node is not None:
            hasher.part("syntax", source.syntax(node))
            graph.mentions(source.syntax(node))
            graph.covers(source, node)
            uses = source.function_uses(node)
            detail = f"{os.path.basename(code.co_filename)}:{node.lineno}"
            if "<locals>" not in function.__qualname__:
                for chain in source.decorator_refs(node):
                    said = self.resolve(function, chain, label, lenient=True)
                    hasher.part(f"decorator {'.'.join(chain)}", said.encode())
        else:
            hasher.part("code", code_digest(code).encode())
            graph.codes.update((code.co_filename, each) for each in nested(code))
            graph.mentions(" ".join(f"s{len(each)}:{each}" for each in code_words(code)).encode())
            uses = code_uses(code)
            detail = f"{os.path.basename(code.co_filename)}, " + (
                "source changed since import" if source is not None else "no source"
            )
        inner = [] if node is None else docstrings(node)
        graph.aside("documentation", label, lambda: _text([function.__doc__, inner]))
        graph.when("annotations", lambda: self._annotations(function, label))
        if not lenient:
            graph.computed(label, uses)
        for chain in uses.refs:
            hasher.part(f"name {'.'.join(chain)}", self.resolve(function, chain, label, lenient=lenient).encode())
        self._static.follow(uses, package, label, lenient=lenient)
        owner = self._class_of(function)
        if owner is not None:
            hasher.part("class", self.cls(owner, lenient=lenient).encode())
        self._reached(namespace, unit)
        return detail

    def _annotations(self, holder: FunctionType | type, label: str) -> None:
        """A part for what annotations mean; those that are text name globals."""
        module = sys.modules.get(holder.__module__)
        namespace = holder.__globals__ if isinstance(holder, FunctionType) else vars(module) if module else {}
        hasher = Hasher("annotations")
        for name, value in getattr(holder, "__annotations__", {}).items():
            said = self.reference(value, f"{label}.<annotation>/{name}", lenient=True)
            hasher.part(f"annotation {name}", said.encode())
            words = re.findall(r"[A-Za-z_]\w*", value) if isinstance(value, str) else ()
            self._names(namespace, [(word,) for word in words if word in namespace], hasher)
        self._graph.part(f"{label}.<annotations>", hasher, "asked for")

    def _class_of(self, function: FunctionType) -> type | None:
        """The class whose method this is, by its qualified name: its other methods are reached through ``self``."""
        head = function.__qualname__.partition(".")[0]
        if head == function.__qualname__:
            return None
        found = self._graph.watch.name(function.__globals__, head)
        return found if isinstance(found, type) else None

    def resolve(self, function: FunctionType, chain: Chain, label: str, *, lenient: bool) -> str:
        """What a free name of a function, with the attributes taken from it, stands for now."""
        watch = self._graph.watch
        code, namespace, root = function.__code__, function.__globals__, chain[0]
        if root in code.co_freevars:
            value = watch.cell((function.__closure__ or ())[code.co_freevars.index(root)])
            return self._taken(value, chain[1:], f"{label}.<closure>/{root}", None, lenient)
        if root in _DYNAMIC and not lenient and root not in namespace:
            self._whole(namespace, code.co_filename, dynamic=True)
            self._all_names(namespace, modules=True)
        return self._global(namespace, chain, lenient=lenient)

    def _global(self, namespace: dict[str, Any], chain: Chain, *, lenient: bool) -> str:
        """What a name that code of a module takes from outside of itself stands for now."""
        watch, root = self._graph.watch, chain[0]
        if root in _MODULE_NAMES:
            return self._of_every_module(namespace, root)
        value = watch.name(namespace, root)
        if value is not MISSING:
            return self._taken(value, chain[1:], f"{self._module_label(namespace)}.{root}", namespace, lenient)
        found = namespace.get("__builtins__")
        scope: Mapping[str, Any] = vars(found) if isinstance(found, ModuleType) else found or {}
        value = watch.name(scope, root)
        if value is MISSING:
            return "absent"
        if isinstance(value, types.BuiltinFunctionType) or (isinstance(value, type) and value.__module__ == "builtins"):
            return "builtin"
        return self.reference(value, f"builtins.{root}", lenient=lenient)

    def _of_every_module(self, namespace: dict[str, Any], name: str) -> str:
        """What stands for a name that every module has: the documentation as it is, all else as that module's."""
        said = _text(self._graph.watch.name(namespace, name)) if name == "__doc__" else b""
        return f"{name} of {module_name(namespace)} {digest_bytes(said)}"

    def _taken(self, value: object, rest: Chain, name: str, namespace: dict[str, Any] | None, lenient: bool) -> str:
        if value is MISSING:
            return "unbound"
        if isinstance(value, ModuleType):
            return self.module(value, rest, lenient=lenient)
        said = self.code(value, lenient=lenient)
        if said is None:
            made = functools.partial(self._by_origin, name, value, namespace)
            said = self._values.part(value, name, lenient=lenient, fallback=made)
        if namespace is not None and self._shows_not_all(value, name):
            return f"{said} made by {self._statements(namespace, name.rpartition('.')[2], 8, value)}"
        return said

    def _shows_not_all(self, value: object, name: str) -> bool:
        """Whether what a decorator of a library was told shows only in the statement that called it."""
        if isinstance(value, FunctionType):
            return bool(value.__closure__) and self._locator.of_file(value.__code__.co_filename)[0] != "project"
        return name in self._values.opaque

    def _maker(self, function: FunctionType) -> str:
        """The digest of the outermost function that made this one, which is followed: what it told to what it made."""
        namespace, head = function.__globals__, function.__qualname__.partition(".<locals>")[0]
        unit = self._unit(namespace)
        node = unit.source.definition(head) if unit is not None else None
        if unit is not None and node is None and (cell := self._of_cell(namespace, function.__code__)) is not None:
            unit, node = cell, cell.source.definition(head)
        if unit is None or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self._unknown(namespace, head)
        hasher = Hasher("maker")
        hasher.part("syntax", unit.source.syntax(node) + unit.unsure)
        self._names(namespace, [each for each in unit.source.uses(node).refs if each[0] in namespace], hasher)
        return hasher.digest()

    def _unit(self, namespace: dict[str, Any]) -> Unit | None:
        """The module of a namespace, where it has source of the project."""
        file = namespace.get("__file__")
        if file is None and namespace.get("__name__") == "__main__":
            return self._cells(namespace)
        if not isinstance(file, str) or not file.endswith(".py") or self._locator.of_file(file)[0] != "project":
            return None
        unit = self._units.at(module_name(namespace), file, package_name(namespace))
        module = sys.modules.get(str(namespace.get("__name__")))
        if unit is None or module is None or vars(module) is not namespace:
            return unit
        self._graph.watch.name(namespace, "__spec__")  # a reload makes another
        ran = executed().source(module, module.__name__, unit.source)
        if ran is unit.source:
            return unit
        # Its file was edited since: what made the values of this process stands in the text of then, if in any.
        then = Unit(unit.name, unit.package, ran or unit.source)
        then.unsure = b"" if ran is not None else executed().token(module.__name__)
        return then

    def _cells(self, namespace: dict[str, Any]) -> Unit | None:
        """What was typed into this process, as a module; None where nothing was."""
        source = self._sources.cells()
        if source is None:
            return None
        self._graph.watch.value(cell_names, cell_names())
        return Unit(module_name(namespace), package_name(namespace), source)

    def _of_cell(self, namespace: dict[str, Any], code: CodeType) -> Unit | None:
        """The cell alone that this code was compiled from; None where it is no cell's."""
        source = self._sources.load(code.co_filename) if is_cell(code.co_filename) else None
        return Unit(module_name(namespace), package_name(namespace), source) if source is not None else None

    def _ambiguous(self, unit: Unit, variable: str) -> bool:
        """Whether cells bind a name in different ways. Which of them was run last, and which before something else
        used it, is not known."""
        found = {unit.source.syntax(each) for each in unit.source.bindings.get(variable, ())}
        return unit.source.path == CELLS and len(found) > 1

    def _statements(self, namespace: dict[str, Any], variable: str, depth: int, value: object = None) -> str:
        """The digest of the statements that bind a global, which are followed; through the modules that hand it on.
        value: the global itself, which the statement of one cell made."""
        unit = self._unit(namespace)
        if unit is None:
            return self._unknown(namespace, variable)
        statements = unit.source.bindings.get(variable, [])
        if self._ambiguous(unit, variable):
            code = getattr(attribute(value, "__wrapped__"), "__code__", None)
            cell = self._of_cell(namespace, code) if isinstance(code, CodeType) else None
            statements = cell.source.bindings.get(variable, []) if cell is not None else []
            if cell is None or len(statements) != 1:
                return self._unknown(namespace, variable)
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
                        self._check_one(namespace, chain[0], value)
                    where = f"{self._module_label(namespace)}.{chain[0]}"
                    said = self._taken(namespace[chain[0]], chain[1:], where, namespace, lenient=True)
                    hasher.part(f"name {'.'.join(chain)}", said.encode())
        for use in unit.source.imports.get(variable, ()):
            module = sys.modules.get(self._units.origin(unit, use).name)
            if isinstance(module, ModuleType) and depth:
                hasher.part("import", self._statements(vars(module), use.name, depth - 1).encode())
        return hasher.digest()

    def _check_one(self, namespace: dict[str, Any], name: str, value: object = None) -> None:
        """Report a name of cells that is bound in different ways, where something was made of it of which not all
        shows. value: what was made; what it wraps shows."""
        unit = self._unit(namespace)
        if unit is not None and self._ambiguous(unit, name):
            shown = [attribute(value, "__wrapped__"), *gc.get_referents(value)]
            if not any(each is namespace[name] for each in shown):
                self._unknown(namespace, name)

    def _unknown(self, namespace: dict[str, Any], name: str) -> str:
        """Report something of which not all shows, and the statement that made it can't be told."""
        file = namespace.get("__file__")
        if isinstance(file, str) and self._locator.of_file(file)[0] != "project":
            return "unknown"  # a library's own
        return self._graph.unresolved(f"{module_name(namespace)}.{name}", "was made by a statement that can't be told")

    def _by_origin(self, name: str, value: object, namespace: dict[str, Any] | None) -> str | None:
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
            outside = origin.kind in ("library", "distribution") and bool(use.name) and module is not None
            if outside and vars(module).get(use.name, MISSING) is value:
                if origin.distribution:
                    self._graph.distributions.add(origin.distribution)
                return f"{origin.distribution or 'python'}:{origin.name}.{use.name}"
        return None

    # --- modules

    def _module_label(self, namespace: dict[str, Any]) -> str:
        """The name of a module in labels; a second module of the same name gets a number."""
        name = module_name(namespace)
        label, _ = self._graph.label(("namespace", id(namespace)), f"namespace {name}", namespace)
        return label.removeprefix("namespace ")

    def module(self, module: ModuleType, rest: Chain, *, lenient: bool) -> str:
        """What attributes of a module stand for; the whole module where none is named."""
        graph, namespace = self._graph, vars(module)
        file = namespace.get("__file__")
        kind, distribution = self.origin_of_module(namespace.get("__name__"))
        if isinstance(file, str):
            kind, distribution = self._locator.of_file(file)
        name = module_name(namespace)
        if distribution:
            graph.distributions.add(distribution)
        if kind != "project":
            return f"{distribution or 'python'}:{name}"
        if isinstance(file, str) and not file.endswith(".py"):
            return self._extension(name, file)
        if not rest:
            label = self._whole(namespace, file if isinstance(file, str) else "", dynamic=True)
            self._all_names(namespace, modules=False)
            return label
        if isinstance(file, str):
            self._reached(namespace, self._units.at(name, file, package_name(namespace)))
        if rest[0] in _MODULE_NAMES:
            return self._of_every_module(namespace, rest[0])
        value = graph.watch.name(namespace, rest[0])
        if value is MISSING:
            if "__path__" in namespace and self._locator.find(f"{name}.{rest[0]}").kind != "absent":
                use = ImportUse(f"{name}.{rest[0]}", 0, "", rest[1:], False)
                self._static.imported(use, "", name, lenient=lenient)
                return f"module {name}.{rest[0]}"
            if "__getattr__" in namespace:
                return self._whole(namespace, file if isinstance(file, str) else "", dynamic=False)
            return "absent"
        return self._taken(value, rest[1:], f"{self._module_label(namespace)}.{rest[0]}", namespace, lenient)

    def _extension(self, name: str, file: str) -> str:
        label, first = self._graph.label(("file", file), name)
        if first:
            try:
                file_part(self._graph, label, file)
            except OSError as error:
                return self._graph.unresolved(f"module {name}", f"can't be read ({error.strerror})")
        return label

    def _reached(self, namespace: dict[str, Any], unit: Unit | None) -> None:
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
                self._whole(namespace, unit.source.path, dynamic=False)
            self._static.effects(unit)
            self._static.idle(unit)
            whole = self._cells(namespace) if is_cell(unit.source.path) else unit
            self._static.asides(whole or unit)

    def _whole(self, namespace: dict[str, Any], file: str, *, dynamic: bool) -> str:
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
            graph.unresolved(f"module {name}", "is used as a whole and has no source")
            graph.part(label, hasher, "no source")
            return label
        source = unit.source
        hasher.part("syntax", source.syntax(source.tree))
        graph.mentions(source.syntax(source.tree))
        graph.covers(source, source.tree)
        graph.aside("documentation", label, lambda: _text(docstrings(source.tree)))
        uses = source.uses(source.tree)

        def reach() -> None:
            chains = [chain for chain in uses.refs if chain[0] in namespace]
            chains += [(root,) for root in source.bindings if root in namespace]
            self._names(namespace, chains, hasher)
            self._static.follow(uses, unit.package, name, lenient=True)
            graph.part(label, hasher, f"{os.path.basename(file)}, {unit.whole or 'used as a whole'}")

        graph.later(reach, lenient=True)
        if "*" in source.imports:
            self._all_names(namespace, modules=False)
        return label

    def _script(self, namespace: dict[str, Any], unit: Unit) -> None:
        """Of the script that is running, what its statements hand over; the rest counts where the stage reaches it."""
        hasher, source = Hasher("script"), unit.source
        for statement in unit.handing:
            hasher.part("syntax", source.syntax(statement))
            self._graph.mentions(source.syntax(statement))
            chains = [each for each in source.uses(statement).refs if each[0] in namespace]
            if isinstance(statement, ast.ClassDef) and statement.name in namespace:
                chains.append((statement.name,))
            chains = [each for each in chains if not self._in_flux(unit, namespace[each[0]], each[0])]
            self._graph.later(functools.partial(self._names, namespace, chains, Hasher("names")), lenient=True)
        if unit.handing:
            label, _ = self._graph.label(("script", id(namespace)), f"{unit.name}.<script>", namespace)
            self._graph.part(label, hasher, f"{os.path.basename(source.path)}, what it hands over")

    def _in_flux(self, unit: Unit, value: object, name: str) -> bool:
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

    def _names(self, namespace: dict[str, Any], chains: list[Chain], hasher: Hasher) -> None:
        """Follow names of a module leniently, and feed what each stands for."""
        for chain in dict.fromkeys(chains):
            value = self._graph.watch.name(namespace, chain[0])
            if chain[0] in _MODULE_NAMES or (len(chain) == 1 and isinstance(value, ModuleType)):
                continue
            where = f"{self._module_label(namespace)}.{chain[0]}"
            said = self._taken(value, chain[1:], where, namespace, lenient=True)
            hasher.part(f"name {'.'.join(chain)}", said.encode())

    def _all_names(self, namespace: dict[str, Any], *, modules: bool) -> None:
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
            self._names(namespace, [(each,) for each in names], hasher)
            if modules:
                for each in names:
                    if isinstance(namespace[each], ModuleType):
                        hasher.part(f"module {each}", self.module(namespace[each], (), lenient=True).encode())
            graph.part(label, hasher, f"every name of {name}")

        graph.later(reach, lenient=True)

    # --- classes

    def cls(self, cls: type, *, lenient: bool) -> str:
        """The label of a class; its body, bases and methods are looked at later."""
        name = f"{cls.__module__}.{cls.__qualname__}"
        kind, distribution = self.origin_of_class(cls)
        if distribution:
            self._graph.distributions.add(distribution)
        if kind != "project":
            return f"{distribution or 'python'}:{name}"
        module = sys.modules.get(cls.__module__)
        wanted = f"{module_name(vars(module))}.{cls.__qualname__}" if module is not None else name
        label, _ = self._graph.label(id(cls), wanted, cls)
        self._graph.look(label, lambda lenient: self._cls(cls, label, lenient), lenient=lenient)
        return label

    def _cls(self, cls: type, label: str, lenient: bool) -> None:
        graph = self._graph
        hasher = Hasher("class")
        module = sys.modules.get(cls.__module__)
        namespace = vars(module) if module is not None and self.origin_of_module(cls.__module__)[0] == "project" else {}
        unit = self._unit(namespace)
        if unit is not None and self._ambiguous(unit, cls.__qualname__.partition(".")[0]):
            unit = self._cell_of(cls, namespace)
        found = unit.source.definition(cls.__qualname__) if unit is not None else None
        node = found if isinstance(found, ast.ClassDef) else None
        by_source = node is not None or (lenient and unit is not None)  # or else nothing says what made its values
        said = node is not None or classes.tells(cls)
        opaque = False
        detail = "no source"
        if unit is not None and node is not None:
            apart = {
                name
                for name, value in vars(cls).items()
                if isinstance(value, FunctionType) and value.__code__.co_qualname == f"{cls.__qualname__}.{name}"
            }
            body = unit.source.class_syntax(node, apart)
            hasher.part("syntax", body)
            graph.covers(unit.source, node)
            graph.mentions(body)
            # All that the body runs: fields, tables, wrappers, of which not everything shows in what they made.
            for chain in unit.source.class_uses(node).refs:
                stands = self._global(namespace, chain, lenient=True)
                hasher.part(f"name {'.'.join(chain)}", stands.encode())
            detail = f"{os.path.basename(unit.source.path)}:{node.lineno}"
        for base in cls.__bases__:
            hasher.part("base", self.cls(base, lenient=lenient).encode())
        hasher.part("metaclass", self.cls(type(cls), lenient=lenient).encode())
        for name, value in sorted(graph.watch.attributes(cls).items()):
            if name in _SKIPPED_ATTRIBUTES or isinstance(value, _SLOTS):
                continue
            for kind, held in _held(value):
                if isinstance(held, FunctionType) and said and classes.made(held, cls, self._is_library):
                    continue  # from what the class says, by a decorator or base
                leniently = lenient if isinstance(held, FunctionType) else by_source
                stands = self.reference(held, f"{label}.{name}", lenient=leniently)
                hasher.part(f"{kind} {name}", stands.encode())
                opaque = opaque or stands == "by source" or self._shows_not_all(held, f"{label}.{name}")
            if not _held(value) and classes.is_own(cls, name, node):
                stands = self.reference(value, f"{label}.{name}", lenient=by_source)
                hasher.part(f"attribute {name}", stands.encode())
                opaque = opaque or stands == "by source" or self._shows_not_all(value, f"{label}.{name}")
        if opaque and unit is not None and namespace:
            replaced = classes.is_made_elsewhere(cls)  # by a reload: which text made this one is not known
            hasher.part("unsure", executed().token(cls.__module__) + b" earlier" if replaced else unit.unsure)
            if node is not None and "__file__" not in namespace:
                for chain in unit.source.class_uses(node).refs:
                    if chain[0] in namespace:
                        self._check_one(namespace, chain[0])
        for name, content in classes.contents(cls, graph.watch):
            hasher.part(f"content {name}", self.reference(content, f"{label}.{name}", lenient=by_source).encode())
        graph.part(label, hasher, detail)
        graph.aside("documentation", label, lambda: _text([vars(cls).get("__doc__"), node and docstrings(node)]))
        graph.when("annotations", lambda: self._annotations(cls, label))
        graph.when("subclasses", lambda: self._subclasses(cls, label))
        self._reached(namespace, unit)

    def _cell_of(self, cls: type, namespace: dict[str, Any]) -> Unit | None:
        """The cell that a class was made by, as its methods tell."""
        codes = [value.__code__ for value in vars(cls).values() if isinstance(value, FunctionType)]
        cells = [
            self._of_cell(namespace, code) for code in codes if code.co_qualname.startswith(f"{cls.__qualname__}.")
        ]
        return cells[0] if cells else None

    def _subclasses(self, cls: type, label: str) -> None:
        """A part for the subclasses that a class has in this process, whoever made them; they are followed."""
        hasher = Hasher("subclasses")
        for each in self._graph.watch.subclasses(cls):
            hasher.part("subclass", self.cls(each, lenient=True).encode())
        self._graph.part(f"{label}.<subclasses>", hasher, "in their order")


def _text(value: object) -> bytes:
    return repr(value).encode("utf-8", "surrogatepass")


def _held(value: object) -> list[tuple[str, object]]:
    """What a method, or another descriptor that Python has for methods, holds, each with its part in it."""
    if isinstance(value, FunctionType):
        return [("method", value)]
    found: list[tuple[str, object]]
    if isinstance(value, property):
        found = [("get", value.fget), ("set", value.fset), ("delete", value.fdel)]
    elif isinstance(value, staticmethod | classmethod):
        found = [(type(value).__name__, value.__func__)]
    elif isinstance(value, functools.cached_property):
        found = [("cached", value.func)]
    elif isinstance(value, functools.partialmethod):
        found = [("partial", value.func), ("arguments", value.args), ("keywords", value.keywords)]
    elif isinstance(value, functools.singledispatchmethod):
        found = [("dispatched", value.func), ("dispatcher", value.dispatcher)]
    else:
        return []
    return [(kind, each) for kind, each in found if each is not None]
