"""Code reached through imports inside functions: read from source, never imported.

The key must be the same before and after the import, so such modules are always taken from their source text. Where
one is imported already, what runs is held against that (``compared``).
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

import msgspec

from cachec.base.display_text import module_of
from cachec.base.hashing import Hasher
from cachec.key.code import scopes
from cachec.key.code.code_snapshot import MISSING
from cachec.key.code.executed_source import executed_sources
from cachec.key.code.generated_members import is_generated, is_open
from cachec.key.code.library_objects import is_mock, is_put
from cachec.key.code.module_sources import CELLS, Locator, Origin, Sources, absolute
from cachec.key.code.normalized_syntax import docstrings, parse
from cachec.key.code.part_graph import PartGraph, file_part
from cachec.key.code.scopes import Chain, ImportUse, Uses
from cachec.key.code.whole_modules import ModuleUnit, Units

if TYPE_CHECKING:
    from cachec.key.code.text_comparison import LiveWalk, TextComparison


class _By(msgspec.Struct, frozen=True):
    """Who imports: a name for messages, whether a missing module is provided for, and whether it must be reported."""

    who: str
    guarded: bool
    lenient: bool


class DeferredImports:
    """The part of one computation that reads source only."""

    def __init__(
        self,
        graph: PartGraph,
        locator: Locator,
        sources: Sources,
        units: Units,
        live: LiveWalk,
        *,
        text_only: bool = False,
    ) -> None:
        """text_only: whatever modules this process has imported are not held against their text."""
        self._graph = graph
        self._locator = locator
        self._units = units
        self._live = None if text_only else live
        self._taken: set[tuple[str, str, Chain | None, bool]] = set()
        self._located: dict[str, Origin] = {}
        self._sources = sources
        self._walk = live

    @cached_property
    def _comparison(self) -> TextComparison:
        from cachec.key.code.text_comparison import TextComparison  # most stages import nothing of the project inside

        return TextComparison(self._graph, self._locator, self._sources, self._walk, text_only=self._live is None)

    def follow(self, uses: Uses, package: str, who: str, *, lenient: bool) -> None:
        """Follow the imports that some code makes while it runs. ``who`` names the code in messages."""
        for use in uses.imports:
            self.follow_import(use, package, who, lenient=lenient)

    def follow_import(self, use: ImportUse, package: str, who: str, *, lenient: bool, chain: Chain = ()) -> None:
        """Follow one import; ``chain`` are attributes beyond those of the use itself."""
        name = absolute(use, package)
        if name is None:
            self._graph.report_unresolved(
                f"the import of {'.' * use.level}{use.module} in {who}", "leads out of its package"
            )
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
        is_live = self._live is not None and name not in graph.text_alone
        found = graph.watch.name(sys.modules, name) if is_live else MISSING
        if found is None:  # what stands so in ``sys.modules`` can't be imported
            label, first = graph.label(("barred", name), f"{name} (barred)")
            if first:
                graph.part(label, Hasher("barred module"), "None in sys.modules")
            return Origin("absent", name)
        origin = self._located[name] = self._locator.find(name)
        if origin.kind == "library":
            return origin
        if self._live is not None and is_live and origin.kind == "project":
            self._elsewhere(found, origin, self._live)
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
                graph.report_unresolved(f"module {name}, imported in {by.who},", "is not found")
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
                graph.unimported.add(name)
                executed_sources().mark_pending(name, origin.path)
        return origin

    def _elsewhere(self, found: object, origin: Origin, live: LiveWalk) -> None:
        """What an imported module is where an import would find another one now; where its submodules are looked for,
        if that was changed."""
        self._graph.watch.sequence(sys.meta_path)
        file = vars(found).get("__file__") if isinstance(found, ModuleType) else None
        if not isinstance(found, ModuleType) or not isinstance(file, str) or not origin.path:
            return
        self._graph.watch.name(vars(found), "__file__")
        if not _is_same(file, origin.path):
            live.as_imported(found, origin.name)
        path = self._graph.watch.name(vars(found), "__path__")
        if isinstance(path, list):
            self._graph.watch.sequence(path)
            if path != list(origin.folders):
                live.as_imported(tuple(path), f"{origin.name}.__path__")

    def _watch_search(self, origin: Origin, folders: list[str]) -> None:
        """Watch for a module that appears in one of these folders, where it would be found first."""
        if folders:
            paths = [folder or os.curdir for folder in folders]
            self._graph.watch.folders(paths, lambda: self._locator.find_uncached(origin.name) == origin)

    def _module(self, name: str, chain: Chain | None, by: _By) -> None:
        """Follow a module of which ``chain`` is taken: nothing means that it is used in ways that can't be told."""
        self._parents(name, by)
        origin = self._locate(name, by)
        if chain and origin.kind != "absent":
            self._attribute(name, chain[0], chain[1:], by)
        if chain or origin.kind != "project":
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
        if origin.kind in {"library", "distribution"}:
            self._follow_replacement(name, (attribute, *(chain or ())))
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
        if unit is not None and attribute in {"__dict__", "__annotations__"}:
            self.whole(unit)
            if attribute == "__dict__":
                self._all_names(unit)
        elif origin.folders and self._locator.find(f"{name}.{attribute}").kind != "absent":
            self._module(f"{name}.{attribute}", chain, by)
        else:
            self._comparison.note_missing(f"{name}.{attribute}")
            if unit is not None and unit.whole:
                self.whole(unit)  # a star import or a module __getattr__ may supply it
        if unit is not None and not self._defines(unit, attribute):
            self._comparison.unbound(unit, attribute)
            if attribute == "__doc__":
                self.asides(unit)

    def _follow_replacement(self, name: str, chain: Chain) -> None:
        """Follow what the project put in the place of a library's function, or of methods of its class."""
        if self._live is None:
            return
        watch, dotted = self._graph.watch, ".".join((name, *chain))
        value = watch.name(sys.modules, name)
        for attribute in chain:
            value = watch.name(vars(value), attribute) if isinstance(value, ModuleType) else value
        if is_put(value, self._locator):
            self._live.as_imported(value, dotted)
        elif isinstance(value, type):
            for cls in filter(is_open, value.__mro__):
                for attribute, member in sorted(watch.attributes(cls).items()):
                    if self._is_put(member, cls):
                        self._live.as_imported(member, f"{dotted}.{attribute}")

    def _is_put(self, member: object, cls: type) -> bool:
        """Whether the project put a function into a class of a library: not what libraries compile of text, as
        ``dataclasses`` does."""
        if is_mock(member):
            return True
        if not isinstance(member, FunctionType) or not self._locator.is_own(member):
            return False
        if not member.__code__.co_filename.startswith("<"):
            return True
        return not is_generated(member, cls, lambda file: False) and self._locator.find(module_of(member)).kind not in {
            "library",
            "distribution",
        }

    def _defines(self, unit: ModuleUnit, name: str) -> bool:
        return name in unit.source.bindings or name in unit.source.imports

    def _opaque(self, origin: Origin, who: str) -> None:
        """A module of the project without source: an extension module counts by content."""
        label, first = self._graph.label(("file", origin.path), origin.name)
        if first:
            try:
                file_part(self._graph, label, origin.path)
            except OSError as error:
                self._graph.report_unresolved(
                    f"module {origin.name}, imported in {who},", f"can't be read ({error.strerror})"
                )

    # --- inside a module

    def name(self, unit: ModuleUnit, name: str, chain: Chain | None) -> None:
        """Follow a module-level name, of which the attributes ``chain`` are taken."""
        self._reach(unit)
        who = f"{unit.name}.{name}"
        for use in unit.source.imports.get(name, ()):
            # guarded or not: a missing module there fails when this module is imported, whatever the stage does
            self.follow_import(use, unit.package, who, lenient=False, chain=chain or ())
        if name in unit.source.imports:
            self._comparison.imports(unit, name)
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
            self._graph.covers(unit.source, statement, label)
            for use in unit.source.imports_of(statement):
                self.follow_import(use, unit.package, who, lenient=True)
            if isinstance(statement, ast.ClassDef):
                self._graph.when("subclasses", partial(self._comparison.subclasses, unit, name))
            self._graph.when("annotations", partial(self._annotations, unit, statement, who))
        self._graph.aside("documentation", label, lambda: _documentation(statements))
        place = f"{os.path.basename(unit.source.path)}:{statements[0].lineno}"
        self._graph.part(label, hasher, place)
        for statement in statements:
            self._graph.later(partial(self._uses, unit, unit.source.uses(statement), who), lenient=False)
        self._comparison.name(unit, name, statements)

    def _annotations(self, unit: ModuleUnit, statement: ast.stmt, who: str) -> None:
        """Follow what annotations name."""
        self._uses(unit, scopes.scan(list(_annotations(statement))), who)

    def _reach(self, unit: ModuleUnit) -> None:
        """Once a module: its whole where that is the unit, and what it imports for the import's sake."""
        _, first = self._graph.label(("reached", unit.name), f"reached {unit.name}")
        if not first:
            return
        if unit.whole:
            self.whole(unit)
        self.effects(unit)
        self.idle(unit)
        self.asides(unit)

    def asides(self, unit: ModuleUnit) -> None:
        """The documentation and the text of a module, which count where they are asked for."""
        _, first = self._graph.label(("asides", unit.name), f"asides {unit.name}")
        if first:
            self._graph.covers(unit.source)
            tree, path = unit.source.tree, unit.source.path
            self._graph.aside("documentation", f"{unit.name}.<module>", lambda: repr(ast.get_docstring(tree)).encode())
            source = (lambda: unit.source.text) if path == CELLS else partial(_text, path)
            self._graph.aside("source", f"{unit.name}.<module>", source)
            for asked in ("documentation", "source"):
                self._graph.when(asked, partial(self._comparison.run, unit, exact=True))

    def effects(self, unit: ModuleUnit) -> None:
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
        self._comparison.run(unit)

    def idle(self, unit: ModuleUnit) -> None:
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
            imported = self._units.of_origin(origin) if origin.kind == "project" else None
            if imported is not None and (imported.registers or imported.effects) and not unit.loads(variable):
                self._graph.watch.file(origin.path)
                if imported.registers:
                    self.whole(imported)
                else:
                    self.effects(imported)

    def _uses(self, unit: ModuleUnit, uses: Uses, who: str) -> None:
        self._graph.report_computed(who, uses)
        self.follow(uses, unit.package, who, lenient=False)
        for chain in uses.refs:
            if self._defines(unit, chain[0]):
                self.name(unit, chain[0], chain[1:])
            elif chain[0] in ("globals", "eval", "exec"):
                self.whole(unit)
                self._all_names(unit)

    def whole(self, unit: ModuleUnit) -> None:
        """Take a whole module, and everything that it reaches."""
        label, first = self._graph.label(("whole", unit.name), unit.name)
        if not first:
            return
        self._comparison.wholes.append(unit)
        source = unit.source
        hasher = Hasher("module")
        hasher.part("syntax", source.syntax(source.tree))
        self._graph.mentions(source.syntax(source.tree))
        self._graph.covers(source, source.tree, label)
        self._graph.aside("documentation", label, lambda: _documentation([source.tree]))
        self._graph.part(label, hasher, f"{os.path.basename(source.path)}, {unit.whole or 'used as a whole'}")
        self.idle(unit)
        for star in source.imports.get("*", ()):
            self.follow_import(star, unit.package, unit.name, lenient=True)
        uses = source.uses(source.tree)

        def reach() -> None:
            self.follow(uses, unit.package, unit.name, lenient=True)
            for chain in uses.refs:
                for use in source.imports.get(chain[0], ()):
                    self.follow_import(use, unit.package, unit.name, lenient=True, chain=chain[1:])

        self._graph.later(reach, lenient=True)
        for name, statements in source.bindings.items():
            self._comparison.name(unit, name, statements)
            if any(isinstance(each, ast.ClassDef) for each in statements):
                self._graph.when("subclasses", partial(self._comparison.subclasses, unit, name))
        for name in sorted(source.imports.keys() - {"*"}):
            self._comparison.imports(unit, name)
        self._comparison.run(unit)

    def _all_names(self, unit: ModuleUnit) -> None:
        """Follow everything that a module imports: any of it may be looked up by a name that is not known."""
        _, first = self._graph.label(("all names", unit.name), f"names {unit.name}")
        if not first:
            return
        self._comparison.names(unit)

        def reach() -> None:
            for name, uses in unit.source.imports.items():
                for use in uses:
                    self.follow_import(use, unit.package, f"{unit.name}.{name}", lenient=True)

        self._graph.later(reach, lenient=True)


def _annotations(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions that annotate something in a statement; those that are text as what it says."""
    for node in ast.walk(statement):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
                with suppress(SyntaxError):  # it names nothing then
                    yield parse(annotation.value, mode="eval").body
            elif isinstance(annotation, ast.AST):
                yield annotation


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.abspath(one) == os.path.abspath(other) or os.path.samefile(one, other)
    except OSError:  # one of them is gone
        return False


def _text(path: str) -> bytes:
    """A file as whoever asks for source reads it: as it is now."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _documentation(nodes: Sequence[ast.AST]) -> bytes:
    return repr([docstrings(each) for each in nodes]).encode()
