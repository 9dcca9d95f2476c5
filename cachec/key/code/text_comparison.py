"""Compares imported modules with their text. A difference (an edit, or a replacement at run time) adds a key part, so a
process with old code never publishes under the key of the new code."""

from __future__ import annotations

import ast
import enum
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from cachec.base.display_text import module_of
from cachec.base.hashing import Hasher
from cachec.base.instances import attribute, is_instance
from cachec.base.lazy import later
from cachec.key.code import generated_members
from cachec.key.code.code_snapshot import MISSING
from cachec.key.code.executed_source import executed_sources
from cachec.key.code.lru_cache_validity import is_memo
from cachec.key.code.module_sources import Locator, Sources, absolute
from cachec.key.code.part_graph import PartGraph
from cachec.key.code.scopes import Chain, dotted_name
from cachec.key.code.whole_modules import ModuleUnit

if TYPE_CHECKING:
    from cachec.key.code import constant_folding as folding
    from cachec.key.code import rebound_names as altering
else:  # for what the process has changed in its modules
    altering, folding = later("cachec.key.code.rebound_names"), later("cachec.key.code.constant_folding")

_LITERALS = frozenset({bool, int, float, complex, str, bytes, list, tuple, dict, set, type(None)})


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Decorators of methods that hold the function, each with the attribute that has it.
_HOLDERS = {
    **{"staticmethod": "__func__", "classmethod": "__func__", "cached_property": "func", "abstractmethod": ""},
    **{"property": "fget", "setter": "fset", "deleter": "fdel"},
}


class LiveWalk(Protocol):
    """What this module needs of the walk over live objects."""

    def as_imported(self, value: object, name: str, made: bytes = b"") -> None:
        """Take a value as it is at run time, because its source does not tell. made: what made it, for one of which not
        all shows."""

    def refuse_weights(self, value: object, name: str) -> None:
        """Raise CapturedWeights for a weight set."""


class TextComparison:
    """Compares what imported modules hold with what their text says.

    wholes: the modules that are in the key as a whole, which accounts for what they put into others.
    """

    def __init__(
        self, graph: PartGraph, locator: Locator, sources: Sources, live: LiveWalk, *, text_only: bool = False
    ) -> None:
        """text_only: whatever modules this process has imported are not held against their text."""
        self._graph = graph
        self._text_only = text_only
        self._locator = locator
        self._sources = sources
        self._live = live
        self.wholes: list[ModuleUnit] = []

    def subclasses(self, unit: ModuleUnit, name: str) -> None:
        """Subclasses that this process has, by whoever made them, of a class that is read from source."""
        module = sys.modules.get(unit.name) if self._is_live(unit.name) else None
        cls = vars(module).get(name) if isinstance(module, ModuleType) else None
        if isinstance(cls, type):
            self._graph.watch.subclasses(cls)
            self._graph.at_end(partial(self._compare_subclasses, cls))

    def _compare_subclasses(self, cls: type) -> None:
        subclasses: list[type] = type.__subclasses__(cls)
        for each in subclasses:
            static = ("static", module_of(each), each.__qualname__)
            if not self._is_in_key(each) and self._graph.find_label(static) is None:
                self._live.as_imported(each, f"{module_of(each)}.{each.__qualname__}")

    def _module(self, unit: ModuleUnit) -> ModuleType | None:
        """The imported module, if it is this one."""
        module = sys.modules.get(unit.name) if self._is_live(unit.name) else None
        is_this = isinstance(module, ModuleType) and getattr(module, "__file__", None) == unit.source.path
        return module if is_this else None

    def _is_live(self, name: str) -> bool:
        """Whether what this process has imported under a name counts."""
        return not self._text_only and name not in self._graph.text_alone

    def _take(self, unit: ModuleUnit, altered: Iterable[altering.Alteration]) -> None:
        for each in altered:
            name, value = each.name, each.value
            if each.is_open:
                self._graph.derived.add((unit.name, name.partition(".")[0]))
            elif value is MISSING:
                self._live.as_imported(None, f"{unit.name}.{name} (gone)")
            else:
                self._live.as_imported(value, f"{unit.name}.{name}")

    def names(self, unit: ModuleUnit) -> None:
        """All names of a module, any of which may be looked up: those that its text does not bind."""
        module = self._module(unit)
        if module is not None and not _is_importing(module):
            self._take(unit, altering.of_module(unit, vars(module), self._graph.watch))

    def unbound(self, unit: ModuleUnit, name: str) -> None:
        """A name that is looked up in a module whose text does not bind it."""
        module = self._module(unit)
        if module is not None and not _is_importing(module):
            self._take(unit, altering.of_name(unit, name, vars(module), self._graph.watch))

    def note_missing(self, name: str) -> None:
        """A submodule that is not to be found; this process may have imported it while it was."""
        module = self._graph.watch.name(sys.modules, name) if self._is_live(name) else MISSING
        if isinstance(module, ModuleType):
            self._live.as_imported(module, name)

    def imports(self, unit: ModuleUnit, name: str) -> None:
        """A name that a module imports, as what that is."""
        module = self._module(unit)
        if module is not None and not _is_importing(module) and name not in unit.source.bindings:
            self._take(unit, altering.of_import(unit, name, vars(module), self._graph.watch))

    def run(self, unit: ModuleUnit, *, exact: bool = False) -> None:
        """A part for what a module did when it was imported, where its file has other statements by now; ``exact``:
        another text.
        """
        module = self._module(unit)
        if module is None:
            return
        self._graph.watch.name(vars(module), "__spec__")  # a reload makes another
        executed = executed_sources().source(module, unit.name, unit.source)
        text = (
            executed_sources().token(unit.name)
            if executed is None
            else executed.text
            if exact
            else executed.syntax(executed.tree)
        )
        if executed is unit.source or text == (unit.source.text if exact else unit.source.syntax(unit.source.tree)):
            return
        label, first = self._graph.label(("as executed", unit.name, exact), f"{unit.name} (as imported)")
        if first:
            hasher = Hasher("as executed")
            hasher.part("syntax", text)
            self._graph.part(label, hasher, "differs from its source file")

    def name(self, unit: ModuleUnit, name: str, statements: list[ast.stmt] | tuple[ast.stmt, ...]) -> None:
        module = self._module(unit)
        if module is None:
            return
        value = self._graph.watch.name(vars(module), name)
        if value is MISSING:
            if len(statements) == 1 and _surely_binds(statements[0]) and not _is_importing(module):
                self._take(unit, [altering.Alteration(name, MISSING)])
            return
        where = f"{unit.name}.{name}"
        self._live.refuse_weights(value, where)
        if self._imports_otherwise(unit, statements):
            self._live.as_imported(value, where, b"other imports")
        self._graph.watch.name(vars(module), "__spec__")
        executed = executed_sources().source(module, unit.name, unit.source)
        if executed is not unit.source:
            old = [executed.syntax(each) for each in executed.bindings.get(name, ())] if executed is not None else []
            if executed is None or old != [unit.source.syntax(each) for each in statements]:
                self._live.as_imported(
                    value, where, b"".join(old) if executed is not None else executed_sources().token(unit.name)
                )
        # At the end: only then is it known which modules are in the key as a whole, with what they register here.
        self._graph.at_end(partial(self._compare_value, unit, name, statements, value, where))

    def _imports_otherwise(self, unit: ModuleUnit, statements: Sequence[ast.stmt]) -> bool:
        """Whether optional imports among statements that ran would end in another way now."""
        for name in (each for statement in statements for each in self._optional(unit, statement)):
            is_absent = self._locator.find(name).kind == "absent"
            self._graph.watch.name(sys.modules, name)
            if is_absent == (name in sys.modules):
                return True
            if is_absent:
                return False  # what comes after it did not run
        return False

    def _lacks(self, unit: ModuleUnit, statement: ast.stmt) -> bool:
        """Whether an optional import among a statement's found nothing."""
        return any(
            self._graph.watch.name(sys.modules, name) in (None, MISSING) for name in self._optional(unit, statement)
        )

    def _optional(self, unit: ModuleUnit, statement: ast.stmt) -> Iterator[str]:
        """The modules that a statement's optional imports look for, in their order: of ``from package import name`` the
        submodule too, where the package has nothing else of that name."""
        for use in unit.source.imports_of(statement):
            name = absolute(use, unit.package) if use.guarded else None
            if name is None:
                continue
            yield name
            package = self._graph.watch.name(sys.modules, name)
            if use.name and use.name != "*" and isinstance(package, ModuleType) and "__path__" in vars(package):
                submodule = f"{name}.{use.name}"
                value = self._graph.watch.name(vars(package), use.name)
                is_its = value is MISSING and "__getattr__" not in vars(package)
                if is_its or (value is not MISSING and value is sys.modules.get(submodule)):
                    yield submodule

    def _compare_value(
        self, unit: ModuleUnit, name: str, statements: list[ast.stmt] | tuple[ast.stmt, ...], value: Any, where: str
    ) -> None:
        only = statements[0] if len(statements) == 1 else None
        plain = isinstance(only, _FUNCTIONS) and not only.decorator_list
        may_grow = bool(unit.whole) and type(value) in {dict, list, set}  # what registers things put more there
        if may_grow and isinstance(only, ast.Assign | ast.AnnAssign) and only.value is not None:
            may_grow = (
                folding.literal(only.value) in (folding.UNKNOWN, [], {}, set()) or name in unit.source.mutated_names
            )
        if is_memo(value):
            self._graph.memos[id(value)] = value
        folded_to = self._fold_assignment(unit, only, name) if isinstance(only, ast.Assign | ast.AnnAssign) else None
        is_derived = may_grow or (
            folded_to is None
            and not folding.is_determined(statements, self._makers(unit), value, vars(sys.modules[unit.name]))
        )
        if isinstance(only, ast.ClassDef):
            if isinstance(value, type) and not only.decorator_list:
                self._compare_class(unit, only, value, (name,))
            else:
                is_derived = True
        elif isinstance(only, _FUNCTIONS):
            if plain and isinstance(value, FunctionType):
                self._compare_function(unit, only, value, (name,))
            # What wraps it has attributes and cells; what libraries make of it is asked for what it wraps.
            is_derived = is_derived or (isinstance(value, FunctionType) and not plain)
        elif isinstance(only, ast.Try) and altering.of_try(only, name, value, is_absent=self._lacks(unit, only)):
            self._live.as_imported(value, where)
        elif isinstance(only, ast.Assign | ast.AnnAssign) and not is_derived and folded_to is None:
            if only.value is None or folding.literal(only.value) is not folding.UNKNOWN:
                is_derived = True  # which part of a literal it is can't be told
            elif self._is_ours(value):
                self._live.as_imported(value, where)  # no library makes it
        if is_derived:
            self._graph.derived.add((unit.name, name))
        for function in _functions(value):
            self._graph.watch.function(function)
            code = function.__code__
            if self._locator.of_file(code.co_filename)[0] != "project":
                if not plain:
                    continue  # the wrapper of a decorator, or a base of a class
            elif code.co_filename.startswith("<") and not plain:
                continue  # made by a class decorator
            elif self._current(code) and (not plain or code.co_name == name or self._is_in_key(function)):
                continue
            self._live.as_imported(function, where)
        if isinstance(only, ast.Assign | ast.AnnAssign):
            written = _assigned_expression(only, name)
            is_literal = not may_grow and written is not None and self._compare_literal(written, value, where)
            if not is_literal and not may_grow and folded_to is not None and not folding.same(folded_to[0], value):
                self._live.as_imported(value, where)
            if is_literal or folded_to is not None:
                self._watch_items(value)
        elif plain and not isinstance(value, FunctionType):
            self._live.as_imported(value, where)

    def _compare_class(self, unit: ModuleUnit, node: ast.ClassDef, cls: type, chain: Chain) -> None:
        """What the statement of a class binds is what the class has, and nothing else, or it was changed."""
        where = f"{unit.name}.{'.'.join(chain)}"
        attributes = self._graph.watch.attributes(cls)
        last = {each.name: each for each in node.body if isinstance(each, _FUNCTIONS)}
        for each in node.body:
            if isinstance(each, _FUNCTIONS):
                if not each.decorator_list and (
                    last[each.name] is not each or generated_members.binds(node, each.name)
                ):
                    continue  # bound again
                self._compare_method(unit, each, cls, attributes.get(each.name), (*chain, each.name))
            elif isinstance(each, ast.ClassDef) and not each.decorator_list:
                inner = attributes.get(each.name)
                if isinstance(inner, type):
                    self._compare_class(unit, each, inner, (*chain, each.name))
                else:
                    self._live.as_imported(inner, f"{where}.{each.name}")
        altered = list(altering.of_class(unit, node, cls, attributes, chain, vars(sys.modules[unit.name])))
        self._take(unit, altered)
        is_open = any(each.is_open and each.value is cls for each in altered)
        for name, written in _class_values(node).items():
            if name not in attributes and (name.startswith("__") or is_open):
                continue  # of the type, or under a mangled name; a metaclass (pydantic's) took it away
            value = attributes.get(name)
            value = vars(value).get("_value_") if isinstance(value, enum.Enum) else value
            if type(value) in _LITERALS:  # anything else was made of it by a metaclass
                self._compare_literal(written, value, f"{where}.{name}")

    def _compare_method(
        self, unit: ModuleUnit, node: ast.FunctionDef | ast.AsyncFunctionDef, cls: type, value: object, chain: Chain
    ) -> None:
        """A method is what its statement made: a function, or one that Python's own decorators hold."""
        decorators = [(dotted_name(each) or ("",))[-1] for each in node.decorator_list]
        if any(each not in _HOLDERS for each in decorators):
            return
        function: Any = value
        for holder in (_HOLDERS[each] for each in decorators if _HOLDERS[each]):
            function = getattr(function, holder, None)
        if isinstance(function, staticmethod | classmethod) and not decorators:
            return  # Python makes such of `__new__` and others
        is_function = isinstance(function, FunctionType)
        if not is_function or function.__code__.co_qualname != f"{cls.__qualname__}.{node.name}":
            if not (is_function and altering.stores(unit, chain) and self._is_in_key(function)):
                self._live.as_imported(value, f"{unit.name}.{'.'.join(chain)}")
        else:
            self._compare_function(unit, node, function, chain)

    def _compare_function(
        self, unit: ModuleUnit, node: ast.FunctionDef | ast.AsyncFunctionDef, function: FunctionType, chain: Chain
    ) -> None:
        """Defaults and attributes of a function are those of its statement, or it was changed."""
        if function.__code__.co_qualname == ".".join(chain):
            self._graph.watch.function(function)
            self._watch_items(function.__defaults__)
            self._watch_items(function.__kwdefaults__)
            self._take(unit, altering.of_function(unit, node, chain, function))

    def _is_ours(self, value: object) -> bool:
        """Whether a value is the project's, or a plain one."""
        file = getattr(sys.modules.get(module_of(type(value))), "__file__", None)
        is_projects = isinstance(file, str) and self._locator.of_file(file)[0] == "project"
        return is_projects or type(value) in _LITERALS or self._locator.is_own(value)

    def _current(self, code: CodeType) -> bool:
        source = self._sources.load(code.co_filename)
        if source is not None and code.co_name == "__annotate__":  # Python 3.14 makes it of a statement's annotations
            return source.place_of(code) is not None
        return source is not None and source.match(code) is not None

    def _is_registered_by_key(self, value: object) -> bool:
        """Whether code that is in the key put this here."""
        return isinstance(value, FunctionType | type) and self._is_in_key(value)

    def _is_in_key(self, value: FunctionType | type) -> bool:
        """Whether the module that defines a function or class is in the key as a whole, as it is in its file."""
        name = getattr(value, "__module__", None)
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is None:
            return False
        names = (("whole", name), ("whole live", id(vars(module))))
        if all(self._graph.find_label(name) is None for name in names):
            return False
        return isinstance(value, type) or self._current(value.__code__)

    def _makers(self, unit: ModuleUnit) -> set[str]:
        """The names in a module that are of libraries whose functions make things that hold nothing."""
        return {
            name
            for name, uses in unit.source.imports.items()
            if {(absolute(use, unit.package) or "").partition(".")[0] for use in uses} <= folding.MAKERS
        }

    def _fold_assignment(self, unit: ModuleUnit, only: ast.Assign | ast.AnnAssign, name: str) -> tuple[Any] | None:
        """What an assignment comes to with what its names are now; None where that can't be told."""
        written = _assigned_expression(only, name) if only.value is not None else None
        bindings = unit.source.bindings
        used = [each.id for each in ast.walk(written) if isinstance(each, ast.Name)] if written is not None else []
        if any(len(bindings.get(each, ())) > 1 for each in used):
            return None  # which of them was meant can't be told
        try:
            return None if written is None else (folding.fold(written, vars(sys.modules[unit.name])),)
        except (folding.NotConstant, RecursionError, KeyError):
            return None

    def _watch_items(self, value: Any) -> None:
        """Have a change in place of a value that was compared show."""
        pending, visited = [value], set[int]()
        while pending:
            one = pending.pop()
            if id(one) in visited:
                continue
            visited.add(id(one))
            if type(one) is dict:
                self._graph.watch.mapping(one)
                pending += one.values()
            elif type(one) is list:
                self._graph.watch.sequence(one)
                pending += one
            elif type(one) is tuple:
                pending += one
            elif type(one) is set:
                items: set[Any] = one
                self._graph.watch.value(lambda items=items: _ids(items), _ids(items))  # type: ignore[misc]

    def _compare_literal(self, written: ast.expr, value: object, where: str) -> bool:
        """Whether it is a literal, which was compared."""
        constant = folding.literal(written)
        if constant is folding.UNKNOWN:
            return False
        if type(value) is dict:
            value = {key: each for key, each in value.items() if not self._is_registered_by_key(each)}
        elif type(value) is list:
            value = [each for each in value if not self._is_registered_by_key(each)]
        if (type(constant) is not type(value) or repr(constant) != repr(value)) and not self._set_elsewhere(
            where, value
        ):
            self._live.as_imported(value, where)
        return True

    def _set_elsewhere(self, where: str, value: object) -> bool:
        """Whether a module that is in the key as a whole says, as a literal, that it sets this to the value it has."""
        module, _, name = where.rpartition(".")
        for unit in self.wholes:
            for statement in unit.source.tree.body:
                if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                    continue
                *holder, attribute = dotted_name(statement.targets[0]) or ("",)
                if attribute == name and holder and module in self._possible_modules(unit, tuple(holder)):
                    constant = folding.literal(statement.value)
                    if type(constant) is type(value) and repr(constant) == repr(value):
                        return True
        return False

    def _possible_modules(self, unit: ModuleUnit, holder: Chain) -> set[str]:
        """The modules that a dotted name in a module may mean."""
        meant = set()
        for use in unit.source.imports.get(holder[0], ()):
            name = absolute(use, unit.package)
            if name is not None:
                meant.add(".".join(filter(None, (name, use.name, *holder[1:]))))
        return meant


def _is_importing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _surely_binds(node: ast.stmt) -> bool:
    """Whether a statement, once it ran, has bound its names."""
    is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign)
    return is_definition or (isinstance(node, ast.AnnAssign) and node.value is not None)


def _assigned_expression(statement: ast.Assign | ast.AnnAssign, name: str) -> ast.expr | None:
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
    return {name: value for name, value in bound.items() if value is not None}


def _ids(items: set[Any]) -> bytes:
    return repr(sorted(map(id, items))).encode()


def _functions(value: object) -> list[FunctionType]:
    """The functions that a definition made: itself, what it wraps, what its closure holds, the methods of a class."""
    functions: list[FunctionType] = []
    pending: list[Any] = [value]
    visited: set[int] = set()
    while pending:
        one = pending.pop()
        if id(one) in visited:
            continue
        visited.add(id(one))
        if is_instance(one, FunctionType):
            functions.append(one)
            pending.append(one.__dict__.get("__wrapped__"))
        elif is_instance(one, type):
            pending += [
                each
                for each in vars(one).values()
                if is_instance(each, FunctionType, staticmethod, classmethod, property)
            ]
        elif is_instance(one, staticmethod, classmethod):
            pending.append(attribute(one, "__func__"))
        elif is_instance(one, property):
            pending += [one.fget, one.fset, one.fdel]
        elif one is not None and not is_instance(one, ModuleType):
            pending.append(attribute(one, "__wrapped__"))
    return functions
