"""Code reached through imports inside functions: read from source, never imported.

The key must be the same before and after the import, so such modules are always taken from their source text. Where
one is imported already, what runs is compared with the text, and whatever differs (edited since, or replaced at run
time) adds a part of its own: a process that runs old code never publishes under the key of the new.
"""

from __future__ import annotations

import ast
import enum
import os
import sys
from collections.abc import Sequence
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, Protocol

from cachec.base.hashing import Hasher
from cachec.key.code.executed import executed
from cachec.key.code.graph import Graph, file_part
from cachec.key.code.memos import is_memo
from cachec.key.code.modules import CELLS, Locator, Origin, Sources, absolute
from cachec.key.code.scopes import Chain, ImportUse, Uses, dotted
from cachec.key.code.syntax import docstrings
from cachec.key.code.units import Unit, Units
from cachec.key.code.watch import MISSING

_LITERALS = frozenset({bool, int, float, complex, str, bytes, list, tuple, dict, set, type(None)})


class LiveWalk(Protocol):
    """What this module needs of the walk over live objects."""

    def as_imported(self, value: object, name: str, made: bytes = b"") -> None:
        """Take a value as it is at run time, because its source does not tell. made: what made it, for one of which not
        all shows."""

    def refuse_weights(self, value: object, name: str) -> None:
        """Raise CapturedWeights for a weight set."""


class _By(NamedTuple):
    """Who imports: a name for messages, whether a missing module is provided for, and whether it must be reported."""

    who: str
    guarded: bool
    lenient: bool


class Static:
    """The part of one computation that reads source only."""

    def __init__(
        self, graph: Graph, locator: Locator, sources: Sources, units: Units, live: LiveWalk, *, text_only: bool = False
    ) -> None:
        """text_only: whatever modules this process has imported are not held against their text."""
        self._graph = graph
        self._text_only = text_only
        self._locator = locator
        self._sources = sources
        self._units = units
        self._live = live
        self._taken: set[tuple[str, str, Chain | None, bool]] = set()
        self._located: dict[str, Origin] = {}
        self._wholes: list[Unit] = []

    def follow(self, uses: Uses, package: str, who: str, *, lenient: bool) -> None:
        """Follow the imports that some code makes while it runs. ``who`` names the code in messages."""
        for use in uses.imports:
            self.imported(use, package, who, lenient=lenient)

    def imported(self, use: ImportUse, package: str, who: str, *, lenient: bool, chain: Chain = ()) -> None:
        """Follow one import; ``chain`` are attributes beyond those of the use itself."""
        name = absolute(use, package)
        if name is None:
            self._graph.unresolved(f"the import of {'.' * use.level}{use.module} in {who}", "leads out of its package")
            return
        by = _By(who, use.guarded, lenient)
        taken = None if use.chain is None and not chain else (*(use.chain or ()), *chain)
        if use.name and use.name != "*":
            self._attribute(name, use.name, taken, by)
        else:
            self._module(name, taken, by)

    def _locate(self, name: str, by: _By) -> Origin:
        """Where a module is, its distribution noted and the search for it watched."""
        graph = self._graph
        origin = self._located.get(name)
        if origin is not None and origin.kind != "absent":
            return origin
        origin = self._located[name] = self._locator.find(name)
        if origin.kind == "library":
            return origin
        graph.watch.search_path()
        if origin.kind == "distribution":
            graph.distributions.add(origin.distribution)
        elif origin.kind == "absent":
            label, first = graph.label(("absent", name), name)
            if first:
                hasher = Hasher("absent module")
                graph.part(label, hasher, "not found")
                self._watch_search(origin, list(sys.path))
            if not by.guarded and not by.lenient:
                graph.unresolved(f"module {name}, imported in {by.who},", "is not found")
        else:
            before: list[str] = []
            for folder in sys.path:
                try:
                    if origin.path.startswith(os.path.join(os.path.abspath(folder), "")):
                        break
                except FileNotFoundError:  # a relative folder, and the current one was removed
                    continue
                before.append(folder)
            if "." not in name:
                self._watch_search(origin, before)
            if origin.path:
                graph.watch.file(origin.path)
            if graph.watch.name(sys.modules, name) is MISSING and origin.source:
                executed().awaited(name, origin.path)
        return origin

    def _watch_search(self, origin: Origin, folders: list[str]) -> None:
        """Watch for a module that appears in one of these folders, where it would be found first."""
        if folders:
            paths = [folder or os.curdir for folder in folders]
            self._graph.watch.folders(paths, lambda: self._locator.look(origin.name) == origin)

    def _module(self, name: str, chain: Chain | None, by: _By) -> None:
        """Follow a module of which ``chain`` is taken: nothing means that it is used in ways that can't be told."""
        self._parents(name, by)
        origin = self._locate(name, by)
        if origin.kind != "project":
            return
        if chain:
            self._attribute(name, chain[0], chain[1:], by)
            return
        if not origin.path:
            return  # a namespace package holds no code
        unit = self._units.of_origin(origin)
        if unit is None:
            self._opaque(origin, by.who)
        elif chain is not None or unit.registers:
            self.whole(unit)
            if chain is not None:
                self._all_names(unit)
        else:
            self.effects(unit)

    def _parents(self, name: str, by: _By) -> None:
        """Importing a submodule runs its packages; they count where that registers something."""
        parent = name.rpartition(".")[0]
        while parent:
            origin = self._locate(parent, by)
            unit = self._units.of_origin(origin) if origin.kind == "project" else None
            if unit is not None and unit.registers:
                self.whole(unit)
            elif unit is not None:
                self.effects(unit)
            parent = parent.rpartition(".")[0]

    def _attribute(self, name: str, attribute: str, chain: Chain | None, by: _By) -> None:
        """Follow ``from name import attribute``, or ``name.attribute`` of an imported module."""
        self._parents(name, by)
        origin = self._locate(name, by)
        if origin.kind != "project":
            return
        unit = self._units.of_origin(origin)
        if unit is None:
            if origin.path:
                self._opaque(origin, by.who)
                return
        elif self._defines(unit, attribute):
            taken = (name, attribute, chain, by.lenient)
            first = taken not in self._taken
            self._taken.add(taken)
            if first:
                self.name(unit, attribute, chain)
            # `from . import sub` in a package leads back here: then it is the submodule that is meant
            if first or attribute not in unit.source.imports:
                return
        if origin.folders and self._locator.find(f"{name}.{attribute}").kind != "absent":
            self._module(f"{name}.{attribute}", chain, by)
        elif unit is not None and unit.whole:
            self.whole(unit)  # a star import or a module __getattr__ may supply it

    def _defines(self, unit: Unit, name: str) -> bool:
        return name in unit.source.bindings or name in unit.source.imports

    def _opaque(self, origin: Origin, who: str) -> None:
        """A module of the project without source: an extension module counts by content."""
        label, first = self._graph.label(("file", origin.path), origin.name)
        if first:
            try:
                file_part(self._graph, label, origin.path)
            except OSError as error:
                self._graph.unresolved(f"module {origin.name}, imported in {who},", f"can't be read ({error.strerror})")

    # --- inside a module

    def name(self, unit: Unit, name: str, chain: Chain | None) -> None:
        """Follow a module-level name, of which the attributes ``chain`` are taken."""
        self._reached(unit)
        who = f"{unit.name}.{name}"
        for use in unit.source.imports.get(name, ()):
            # guarded or not: a missing module there fails when this module is imported, whatever the stage does
            self.imported(use, unit.package, who, lenient=False, chain=chain or ())
        statements = unit.source.bindings.get(name, ())
        if unit.whole or not statements:
            return
        label, first = self._graph.label(("static", unit.name, name), who)
        if not first:
            return
        hasher = Hasher("definition")
        for statement in statements:
            hasher.part("syntax", unit.source.syntax(statement))
            self._graph.mentions(unit.source.syntax(statement))
            self._graph.covers(unit.source, statement)
            for use in unit.source.imports_of(statement):
                self.imported(use, unit.package, who, lenient=True)
            if isinstance(statement, ast.ClassDef):
                self._graph.when("subclasses", partial(self._subclasses, unit, name))
        self._graph.aside("documentation", who, lambda: _documentation(statements))
        place = f"{os.path.basename(unit.source.path)}:{statements[0].lineno}"
        self._graph.part(label, hasher, place)
        for statement in statements:
            self._graph.later(partial(self._uses, unit, unit.source.uses(statement), who), lenient=False)
        self._compare(unit, name, statements)

    def _reached(self, unit: Unit) -> None:
        """Once a module: its whole where that is the unit, and what it imports for the import's sake."""
        _, first = self._graph.label(("reached", unit.name), f"reached {unit.name}")
        if not first:
            return
        if unit.whole:
            self.whole(unit)
        self.effects(unit)
        self.idle(unit)
        self.asides(unit)

    def asides(self, unit: Unit) -> None:
        """The documentation and the text of a module, which count where they are asked for."""
        _, first = self._graph.label(("asides", unit.name), f"asides {unit.name}")
        if first:
            self._graph.covers(unit.source)
            tree, path = unit.source.tree, unit.source.path
            self._graph.aside("documentation", f"{unit.name}.<module>", lambda: repr(ast.get_docstring(tree)).encode())
            source = (lambda: unit.source.text) if path == CELLS else partial(_text, path)
            self._graph.aside("source", f"{unit.name}.<module>", source)
            for asked in ("documentation", "source"):
                self._graph.when(asked, partial(self._compare_run, unit, exact=True))

    def _subclasses(self, unit: Unit, name: str) -> None:
        """Subclasses that this process has, by whoever made them, of a class that is read from source."""
        module = None if self._text_only else sys.modules.get(unit.name)
        cls = vars(module).get(name) if isinstance(module, ModuleType) else None
        if isinstance(cls, type):
            self._graph.watch.subclasses(cls)
            self._graph.at_end(partial(self._compare_subclasses, cls))

    def _compare_subclasses(self, cls: type) -> None:
        subclasses: list[type] = type.__subclasses__(cls)
        for each in subclasses:
            static = ("static", each.__module__, each.__qualname__)
            if not self._accounted(each) and self._graph.known(static) is None:
                self._live.as_imported(each, f"{each.__module__}.{each.__qualname__}")

    def effects(self, unit: Unit) -> None:
        """What importing a module does to what is outside of the project; where it is taken whole that is in there."""
        if unit.whole or not unit.effects:
            return
        who = f"{unit.name}.<import>"
        label, first = self._graph.label(("effects", unit.name, unit.source.path), who)
        if not first:
            return
        hasher = Hasher("effects")
        for statement in unit.effects:
            hasher.part("syntax", unit.source.syntax(statement))
            self._graph.mentions(unit.source.syntax(statement))
            self._graph.later(partial(self._uses, unit, unit.source.uses(statement), who), lenient=True)
        self._graph.part(label, hasher, f"{os.path.basename(unit.source.path)}, what its import does")
        self._compare_run(unit)

    def idle(self, unit: Unit) -> None:
        """Follow imports of a module whose names nothing loads, where they lead to modules that register."""
        for variable, use in [(each, use) for each, uses in unit.source.imports.items() for use in uses]:
            origin = self._units.origin(unit, use)
            if origin.kind == "project" and use.name and use.name != "*":
                above = self._units.of_origin(origin)
                if above is not None and use.name in above.source.bindings:
                    continue  # no module
                origin = self._locator.find(f"{origin.name}.{use.name}")
            if origin.kind == "absent":
                self._watch_search(origin, list(sys.path))
            found = self._units.of_origin(origin) if origin.kind == "project" else None
            if found is not None and (found.registers or found.effects) and not unit.loads(variable):
                self._graph.watch.file(origin.path)
                if found.registers:
                    self.whole(found)
                else:
                    self.effects(found)

    def _uses(self, unit: Unit, uses: Uses, who: str) -> None:
        self._graph.computed(who, uses)
        self.follow(uses, unit.package, who, lenient=False)
        for chain in uses.refs:
            if self._defines(unit, chain[0]):
                self.name(unit, chain[0], chain[1:])
            elif chain[0] in ("globals", "eval", "exec"):
                self.whole(unit)
                self._all_names(unit)

    def whole(self, unit: Unit) -> None:
        """Take a whole module, and everything that it reaches."""
        label, first = self._graph.label(("whole", unit.name), unit.name)
        if not first:
            return
        self._wholes.append(unit)
        source = unit.source
        hasher = Hasher("module")
        hasher.part("syntax", source.syntax(source.tree))
        self._graph.mentions(source.syntax(source.tree))
        self._graph.covers(source, source.tree)
        self._graph.aside("documentation", label, lambda: _documentation([source.tree]))
        self._graph.part(label, hasher, os.path.basename(source.path))
        self.idle(unit)
        for star in source.imports.get("*", ()):
            self.imported(star, unit.package, unit.name, lenient=True)
        uses = source.uses(source.tree)

        def reach() -> None:
            self.follow(uses, unit.package, unit.name, lenient=True)
            for chain in uses.refs:
                for use in source.imports.get(chain[0], ()):
                    self.imported(use, unit.package, unit.name, lenient=True, chain=chain[1:])

        self._graph.later(reach, lenient=True)
        for name, statements in source.bindings.items():
            self._compare(unit, name, statements)
        self._compare_run(unit)

    def _compare_run(self, unit: Unit, *, exact: bool = False) -> None:
        """A part for what a module did when it was imported, where its file has other statements by now; ``exact``:
        another text.
        """
        module = None if self._text_only else sys.modules.get(unit.name)
        if not isinstance(module, ModuleType) or getattr(module, "__file__", None) != unit.source.path:
            return
        self._graph.watch.name(vars(module), "__spec__")  # a reload makes another
        ran = executed().source(module, unit.name, unit.source)
        said = executed().token(unit.name) if ran is None else ran.text if exact else ran.syntax(ran.tree)
        if ran is unit.source or said == (unit.source.text if exact else unit.source.syntax(unit.source.tree)):
            return
        label, first = self._graph.label(("as executed", unit.name, exact), f"{unit.name} (as imported)")
        if first:
            hasher = Hasher("as executed")
            hasher.part("syntax", said)
            self._graph.part(label, hasher, "differs from its source file")

    def _all_names(self, unit: Unit) -> None:
        """Follow everything that a module imports: any of it may be looked up by a name that is not known."""
        _, first = self._graph.label(("all names", unit.name), f"names {unit.name}")
        if not first:
            return

        def reach() -> None:
            for name, uses in unit.source.imports.items():
                for use in uses:
                    self.imported(use, unit.package, f"{unit.name}.{name}", lenient=True)

        self._graph.later(reach, lenient=True)

    # --- what runs, where the module is imported already

    def _compare(self, unit: Unit, name: str, statements: list[ast.stmt] | tuple[ast.stmt, ...]) -> None:
        module = None if self._text_only else sys.modules.get(unit.name)
        if not isinstance(module, ModuleType) or getattr(module, "__file__", None) != unit.source.path:
            return
        value = self._graph.watch.name(vars(module), name)
        if value is MISSING:
            return
        where = f"{unit.name}.{name}"
        self._live.refuse_weights(value, where)
        if self._imports_otherwise(unit, statements):
            self._live.as_imported(value, where, b"other imports")
        self._graph.watch.name(vars(module), "__spec__")
        ran = executed().source(module, unit.name, unit.source)
        if ran is not unit.source:
            old = [ran.syntax(each) for each in ran.bindings.get(name, ())] if ran is not None else []
            if ran is None or old != [unit.source.syntax(each) for each in statements]:
                self._live.as_imported(value, where, b"".join(old) if ran is not None else executed().token(unit.name))
        # At the end: only then is it known which modules are in the key as a whole, with what they register here.
        self._graph.at_end(partial(self._compare_value, unit, name, statements, value, where))

    def _imports_otherwise(self, unit: Unit, statements: Sequence[ast.stmt]) -> bool:
        """Whether optional imports among statements that ran would end in another way now."""
        for use in (each for statement in statements for each in unit.source.imports_of(statement)):
            name = absolute(use, unit.package) if use.guarded else None
            if name is not None:
                is_absent = self._locator.find(name).kind == "absent"
                self._graph.watch.name(sys.modules, name)
                if is_absent == (name in sys.modules):
                    return True
                if is_absent:
                    return False  # what comes after it did not run
        return False

    def _compare_value(
        self, unit: Unit, name: str, statements: list[ast.stmt] | tuple[ast.stmt, ...], value: Any, where: str
    ) -> None:
        only = statements[0] if len(statements) == 1 else None
        plain = isinstance(only, ast.FunctionDef | ast.AsyncFunctionDef) and not only.decorator_list
        if isinstance(only, ast.ClassDef) and isinstance(value, type) and not only.decorator_list:
            self._compare_methods(unit, only, value, where)
        if is_memo(value):
            self._graph.memos[id(value)] = value
        for function in _functions(value):
            self._graph.watch.function(function)
            code = function.__code__
            if self._locator.of_file(code.co_filename)[0] != "project":
                if not plain:
                    continue  # the wrapper of a decorator, or a base of a class
            elif code.co_filename.startswith("<") and not plain:
                continue  # made by a class decorator
            elif self._current(code) and (not plain or code.co_name == name or self._accounted(function)):
                continue
            self._live.as_imported(function, where)
        if isinstance(only, ast.Assign | ast.AnnAssign):
            written = _written(only, name)
            if written is not None:
                self._compare_literal(written, value, where, registry=bool(unit.whole))
        elif plain and not isinstance(value, FunctionType):
            self._live.as_imported(value, where)

    def _compare_methods(self, unit: Unit, node: ast.ClassDef, cls: type, where: str) -> None:
        """Methods that the class statement defines without a decorator are what the class has, or it was changed."""
        attributes = self._graph.watch.attributes(cls)
        for method in node.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.decorator_list:
                found = attributes.get(method.name)
                if not isinstance(found, FunctionType | staticmethod | classmethod) or (
                    isinstance(found, FunctionType)
                    and found.__code__.co_qualname != f"{cls.__qualname__}.{method.name}"
                    and not (_stores(unit, (node.name, method.name)) and self._accounted(found))
                ):
                    self._live.as_imported(found, f"{where}.{method.name}")
        for name, written in _class_values(node).items():
            value = attributes.get(name)
            value = vars(value).get("_value_") if isinstance(value, enum.Enum) else value
            if type(value) in _LITERALS:  # anything else was made of it by a metaclass
                self._compare_literal(written, value, f"{where}.{name}", registry=False)

    def _current(self, code: CodeType) -> bool:
        source = self._sources.load(code.co_filename)
        return source is not None and source.match(code) is not None

    def _registered(self, value: object, registry: bool) -> bool:
        """Whether code that is in the key put this here. registry: the module itself registers things."""
        return isinstance(value, FunctionType | type) and (registry or self._accounted(value))

    def _accounted(self, value: FunctionType | type) -> bool:
        """Whether the module that defines a function or class is in the key as a whole, as it is in its file."""
        module = sys.modules.get(value.__module__)
        if module is None:
            return False
        names = (("whole", value.__module__), ("whole live", id(vars(module))))
        if all(self._graph.known(name) is None for name in names):
            return False
        return isinstance(value, type) or self._current(value.__code__)

    def _compare_literal(self, written: ast.expr, value: object, where: str, *, registry: bool) -> None:
        try:
            literal = ast.literal_eval(written)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return  # not a literal: its value can't be told from the text
        if type(value) is dict:
            value = {key: each for key, each in value.items() if not self._registered(each, registry)}
        elif type(value) is list:
            value = [each for each in value if not self._registered(each, registry)]
        if (type(literal) is not type(value) or repr(literal) != repr(value)) and not self._set_elsewhere(where, value):
            self._live.as_imported(value, where)

    def _set_elsewhere(self, where: str, value: object) -> bool:
        """Whether a module that is in the key as a whole says, as a literal, that it sets this to the value it has."""
        module, _, name = where.rpartition(".")
        for unit in self._wholes:
            for statement in unit.source.tree.body:
                if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                    continue
                *holder, attribute = dotted(statement.targets[0]) or ("",)
                if attribute == name and holder and module in self._meant(unit, tuple(holder)):
                    try:
                        literal = ast.literal_eval(statement.value)
                    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                        continue
                    if type(literal) is type(value) and repr(literal) == repr(value):
                        return True
        return False

    def _meant(self, unit: Unit, holder: Chain) -> set[str]:
        """The modules that a dotted name in a module may mean."""
        found = set()
        for use in unit.source.imports.get(holder[0], ()):
            name = absolute(use, unit.package)
            if name is not None:
                found.add(".".join(filter(None, (name, use.name, *holder[1:]))))
        return found


def _text(path: str) -> bytes:
    """A file as whoever asks for source reads it: as it is now."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _stores(unit: Unit, chain: Chain) -> bool:
    """Whether a statement of a module, when it is imported, stores to this dotted name."""
    return any(
        dotted(target) == chain
        for statement in unit.source.tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
    )


def _documentation(nodes: Sequence[ast.AST]) -> bytes:
    return repr([docstrings(each) for each in nodes]).encode("utf-8", "surrogatepass")


def _written(statement: ast.Assign | ast.AnnAssign, name: str) -> ast.expr | None:
    """The expression that an assignment binds ``name`` to: ``2`` of ``a, b = 1, 2`` for ``b``. None where it can't be
    told from the text, or is bound twice."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    pending = [(target, statement.value) for target in targets]
    found: list[ast.expr | None] = []
    while pending:
        target, value = pending.pop()
        if isinstance(target, ast.Name):
            found += [value] if target.id == name else []
        elif isinstance(target, ast.Tuple | ast.List):
            values: list[ast.expr] = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            is_even = len(values) == len(target.elts)
            is_plain = is_even and not any(isinstance(each, ast.Starred) for each in (*target.elts, *values))
            pending += [(each, values[i] if is_plain else None) for i, each in enumerate(target.elts)]
        elif isinstance(target, ast.Starred):
            pending.append((target.value, None))
    return found[0] if len(found) == 1 else None


def _class_values(node: ast.ClassDef) -> dict[str, ast.expr]:
    """The attributes that are bound once in a class body, by a plain assignment."""
    bound: dict[str, ast.expr | None] = {}
    for statement in node.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            bound.update((each.id, None) for each in ast.walk(statement) if isinstance(each, ast.Name))
            continue
        for each in ast.walk(target):
            if isinstance(each, ast.Name):
                bound[each.id] = None if each.id in bound or each is not target else value
    return {name: value for name, value in bound.items() if value is not None and not name.startswith("__")}


def _functions(value: object) -> list[FunctionType]:
    """The functions that a definition made: itself, what it wraps, what its closure holds, the methods of a class."""
    found: list[FunctionType] = []
    pending: list[Any] = [value]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, FunctionType):
            found.append(one)
            pending.append(one.__dict__.get("__wrapped__"))
        elif isinstance(one, type):
            pending += [
                each
                for each in vars(one).values()
                if isinstance(each, (FunctionType, staticmethod, classmethod, property))
            ]
        elif isinstance(one, staticmethod | classmethod):
            pending.append(one.__func__)
        elif isinstance(one, property):
            pending += [one.fget, one.fset, one.fdel]
        elif one is not None and not isinstance(one, ModuleType):
            try:
                pending.append(object.__getattribute__(one, "__wrapped__"))
            except AttributeError:
                continue
    return found
