"""Modules that are imported already, held against their text: whatever differs (edited since, or replaced at run time)
adds a part of its own, so that a process that runs old code never publishes under the key of the new.
"""

from __future__ import annotations

import ast
import enum
import sys
from collections.abc import Sequence
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol

from cachec.base.hashing import Hasher
from cachec.base.texts import module_of
from cachec.key.code.executed import executed
from cachec.key.code.folded import MAKERS, Untold, folded, is_told, same
from cachec.key.code.graph import Graph
from cachec.key.code.memos import is_memo
from cachec.key.code.modules import Locator, Sources, absolute
from cachec.key.code.scopes import Chain, dotted
from cachec.key.code.units import Unit
from cachec.key.code.watch import MISSING

_LITERALS = frozenset({bool, int, float, complex, str, bytes, list, tuple, dict, set, type(None)})


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
        self, graph: Graph, locator: Locator, sources: Sources, live: LiveWalk, *, text_only: bool = False
    ) -> None:
        """text_only: whatever modules this process has imported are not held against their text."""
        self._graph = graph
        self._text_only = text_only
        self._locator = locator
        self._sources = sources
        self._live = live
        self.wholes: list[Unit] = []

    def subclasses(self, unit: Unit, name: str) -> None:
        """Subclasses that this process has, by whoever made them, of a class that is read from source."""
        module = None if self._text_only else sys.modules.get(unit.name)
        cls = vars(module).get(name) if isinstance(module, ModuleType) else None
        if isinstance(cls, type):
            self._graph.watch.subclasses(cls)
            self._graph.at_end(partial(self._compare_subclasses, cls))

    def _compare_subclasses(self, cls: type) -> None:
        subclasses: list[type] = type.__subclasses__(cls)
        for each in subclasses:
            static = ("static", module_of(each), each.__qualname__)
            if not self._accounted(each) and self._graph.known(static) is None:
                self._live.as_imported(each, f"{module_of(each)}.{each.__qualname__}")

    def run(self, unit: Unit, *, exact: bool = False) -> None:
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

    def name(self, unit: Unit, name: str, statements: list[ast.stmt] | tuple[ast.stmt, ...]) -> None:
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
        folded_to = self._folded(unit, only, name) if isinstance(only, ast.Assign | ast.AnnAssign) else None
        if folded_to is None and not is_told(statements, self._makers(unit), value, vars(sys.modules[unit.name])):
            self._graph.derived.add((unit.name, name))
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
            is_literal = written is not None and self._compare_literal(written, value, where, registry=bool(unit.whole))
            if not is_literal and folded_to is not None and not same(folded_to[0], value):
                if unit.whole and type(value) in {dict, list, set}:  # the module itself may have put more there
                    self._graph.derived.add((unit.name, name))
                else:
                    self._live.as_imported(value, where)
            if is_literal or folded_to is not None:
                self._watch_items(value)
        elif plain and not isinstance(value, FunctionType):
            self._live.as_imported(value, where)

    def _compare_methods(self, unit: Unit, node: ast.ClassDef, cls: type, where: str) -> None:
        """Methods that the class statement defines without a decorator are what the class has, or it was changed."""
        attributes = self._graph.watch.attributes(cls)
        for method in node.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.decorator_list:
                held = attributes.get(method.name)
                if not isinstance(held, FunctionType | staticmethod | classmethod) or (
                    isinstance(held, FunctionType)
                    and held.__code__.co_qualname != f"{cls.__qualname__}.{method.name}"
                    and not (_stores(unit, (node.name, method.name)) and self._accounted(held))
                ):
                    self._live.as_imported(held, f"{where}.{method.name}")
        for name, written in _class_values(node).items():
            if name.startswith("__") and name not in attributes:
                continue  # of the type, or under a mangled name
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
        name = getattr(value, "__module__", None)
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is None:
            return False
        names = (("whole", name), ("whole live", id(vars(module))))
        if all(self._graph.known(name) is None for name in names):
            return False
        return isinstance(value, type) or self._current(value.__code__)

    def _makers(self, unit: Unit) -> set[str]:
        """The names in a module that are of libraries whose functions make things that hold nothing."""
        return {
            name
            for name, uses in unit.source.imports.items()
            if {(absolute(use, unit.package) or "").partition(".")[0] for use in uses} <= MAKERS
        }

    def _folded(self, unit: Unit, only: ast.Assign | ast.AnnAssign, name: str) -> tuple[Any] | None:
        """What an assignment comes to with what its names are now; None where that can't be told."""
        written = _written(only, name) if only.value is not None else None
        bindings = unit.source.bindings
        used = [each.id for each in ast.walk(written) if isinstance(each, ast.Name)] if written is not None else []
        if any(len(bindings.get(each, ())) > 1 for each in used):
            return None  # which of them was meant can't be told
        try:
            return None if written is None else (folded(written, vars(sys.modules[unit.name])),)
        except (Untold, RecursionError, KeyError):
            return None

    def _watch_items(self, value: Any) -> None:
        """Have a change in place of a value that was compared show."""
        pending, seen = [value], set[int]()
        while pending:
            one = pending.pop()
            if id(one) in seen:
                continue
            seen.add(id(one))
            if type(one) is dict:
                self._graph.watch.mapping(one)
                pending += one.values()
            elif type(one) is list:
                self._graph.watch.sequence(one)
                pending += one
            elif type(one) is tuple:
                pending += one
            elif type(one) is set:
                held: set[Any] = one
                self._graph.watch.value(lambda held=held: _ids(held), _ids(held))  # type: ignore[misc]

    def _compare_literal(self, written: ast.expr, value: object, where: str, *, registry: bool) -> bool:
        """Whether it is a literal, which was compared."""
        try:
            literal = ast.literal_eval(written)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return False  # not a literal: its value can't be told from the text
        if type(value) is dict:
            value = {key: each for key, each in value.items() if not self._registered(each, registry)}
        elif type(value) is list:
            value = [each for each in value if not self._registered(each, registry)]
        if (type(literal) is not type(value) or repr(literal) != repr(value)) and not self._set_elsewhere(where, value):
            self._live.as_imported(value, where)
        return True

    def _set_elsewhere(self, where: str, value: object) -> bool:
        """Whether a module that is in the key as a whole says, as a literal, that it sets this to the value it has."""
        module, _, name = where.rpartition(".")
        for unit in self.wholes:
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
        meant = set()
        for use in unit.source.imports.get(holder[0], ()):
            name = absolute(use, unit.package)
            if name is not None:
                meant.add(".".join(filter(None, (name, use.name, *holder[1:]))))
        return meant


def _stores(unit: Unit, chain: Chain) -> bool:
    """Whether a statement of a module, when it is imported, stores to this dotted name."""
    return any(
        dotted(target) == chain
        for statement in unit.source.tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
    )


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
    return {name: value for name, value in bound.items() if value is not None}


def _ids(held: set[Any]) -> bytes:
    return repr(sorted(map(id, held))).encode()


def _functions(value: object) -> list[FunctionType]:
    """The functions that a definition made: itself, what it wraps, what its closure holds, the methods of a class."""
    functions: list[FunctionType] = []
    pending: list[Any] = [value]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, FunctionType):
            functions.append(one)
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
    return functions
