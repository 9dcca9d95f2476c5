"""Whether a module must be keyed as a whole: its code is reached in ways that no name shows.

A module is one unit where it registers functions, looks names up dynamically, subclasses a class of the project or of
a distribution, or star-imports. Everywhere else its definitions count one by one.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from cachec.key.code import scopes
from cachec.key.code.module_sources import HOLDERS, Locator, Origin, Sources, SourceText, absolute
from cachec.key.code.scopes import Chain, ImportUse

_REPORTING = frozenset({"logging", "warnings", "faulthandler", "atexit"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class ModuleUnit:
    """A module of the project with its source. level: every statement that runs when it is imported (not what is under
    ``if __name__ == "__main__"``). whole: why it counts as one, empty where it does not."""

    def __init__(self, name: str, package: str, source: SourceText) -> None:
        self.name = name
        self.package = package
        self.source = source
        self.level = list(_module_level(source.tree))
        self.whole = ""
        self.registers = False
        #: Of a module that was executed from a text that is not known: what stands for that.
        self.unsure = b""
        #: Statements that change something outside of the project when the module is imported, and register nothing.
        self.effects: tuple[ast.stmt, ...] = ()
        #: Of a script, instead of the whole: statements that hand code of the project to where no name leads back.
        self.handing: tuple[ast.stmt, ...] = ()

    def loads(self, name: str) -> bool:
        """Whether anything in the module loads a name; what it imports and never loads counts for the import itself."""
        return any(chain[0] == name for chain in self.source.uses(self.source.tree).refs)


class Units:
    """Project modules by name and file, examined once as long as their file stays the same."""

    def __init__(self, sources: Sources, locator: Locator) -> None:
        self._sources = sources
        self._locator = locator
        self._known: dict[tuple[str, str], ModuleUnit] = {}

    def at(self, name: str, path: str, package: str) -> ModuleUnit | None:
        """The module ``name`` (its package: what its relative imports start from); None where it has no source."""
        source = self._sources.load(path)
        if source is None:
            return None
        known = self._known.get((name, path))
        if known is not None and known.source is source:
            return known
        unit = self._known[name, path] = ModuleUnit(name, package, source)
        source.stage_decorators = frozenset(self._stage_decorators(unit))
        acting = list(self._acting(unit))
        registering = any(registers for _, registers in acting)
        subclass = self._subclass(unit)
        # Making a class may register it: with __init_subclass__, a metaclass, or just in __subclasses__().
        unit.registers = registering or bool(subclass)
        unit.effects = tuple(node for node, registers in acting if not registers)
        unit.whole = self._reason(unit, registering, subclass)
        unit.handing = tuple(self._handing(unit))
        return unit

    def of_origin(self, origin: Origin) -> ModuleUnit | None:
        """The module that the locator found."""
        package = origin.name if origin.folders else origin.name.rpartition(".")[0]
        return self.at(origin.name, origin.path, package) if origin.source else None

    # --- what stands outside of the project

    def origin(self, unit: ModuleUnit, use: ImportUse) -> Origin:
        """Where an import of this module leads: the module that is named, or the submodule that is taken from it."""
        name = absolute(use, unit.package)
        if name is None:
            return Origin("absent", "." * use.level + use.module)
        return self._locator.find(name)

    def _kinds(self, unit: ModuleUnit, name: str) -> set[str]:
        """The kinds of everything that a module-level name may stand for."""
        kinds = {self.origin(unit, use).kind for use in unit.source.imports.get(name, ())}
        if any(not isinstance(each, ast.Try | ast.If) for each in unit.source.bindings.get(name, ())):
            kinds.add("project")
        if not kinds:
            kinds.add("library" if hasattr(builtins, name) else "project")
        return kinds

    def _is_imported(self, unit: ModuleUnit, chain: Chain) -> bool:
        """Whether a dotted name is imported from outside of the project (a built-in is not an import)."""
        return chain[0] in unit.source.imports and not self._kinds(unit, chain[0]) & {"project", "absent"}

    # --- stages

    def _stage_decorators(self, unit: ModuleUnit) -> Iterator[int]:
        for node in unit.source.functions:
            for decorator in node.decorator_list:
                chain = _decorator_name(decorator)
                named = len(chain) > 1 and chain[-1] == "stage"
                if named and self._is_cache(unit.source, unit.package, chain[0], 4):
                    yield id(decorator)

    def _is_cache(self, source: SourceText, package: str, name: str, depth: int) -> bool:
        """Whether a module-level name is bound to a cache: by a statement that uses cachec, or imported from there."""
        for use in source.imports.get(name, ()):
            target = absolute(use, package) or ""
            if target.partition(".")[0] == "cachec":
                return True
            origin = self._locator.find(target)
            other = self._sources.load(origin.path) if origin.source and origin.kind == "project" and depth else None
            if other is not None and other is not source:
                inner = origin.name if origin.folders else origin.name.rpartition(".")[0]
                if self._is_cache(other, inner, use.name, depth - 1):
                    return True
        statements = [each for each in source.bindings.get(name, ()) if not isinstance(each, _DEFINITIONS)]
        roots = {chain[0] for each in statements for chain in scopes.scan([each]).refs}
        return any(
            (absolute(u, package) or "").partition(".")[0] == "cachec" for r in roots for u in source.imports.get(r, ())
        )

    # --- one unit or many

    def _reason(self, unit: ModuleUnit, registering: bool, subclass: str) -> str:
        if "*" in unit.source.imports:
            return "star import"
        if "__getattr__" in unit.source.bindings:
            return "looks names up dynamically"
        if registering:
            return "registers at import"
        return f"class {subclass} subclasses" if subclass else ""

    def _subclass(self, unit: ModuleUnit) -> str:
        """The first class with a base, or a metaclass, that is not Python's own."""
        for node in unit.level:
            if isinstance(node, ast.ClassDef) and self._is_subclass(unit, node):
                return node.name
        return ""

    def _is_subclass(self, unit: ModuleUnit, node: ast.ClassDef) -> bool:
        for base in (*node.bases, *(keyword.value for keyword in node.keywords)):
            chain = scopes.dotted_name(base.value if isinstance(base, ast.Subscript) else base)
            if not isinstance(base, ast.Constant) and (not chain or self._kinds(unit, chain[0]) != {"library"}):
                return True
        return False

    def _acting(self, unit: ModuleUnit) -> Iterator[tuple[ast.stmt, bool]]:
        """Module-level statements that do something beside binding names, and whether that may put something of the
        project where no name leads back to it.

        A call as a statement, a store to an item or an attribute, a decorator of the project. With what is imported
        from outside of the project, only something that is handed over can be registered.
        """
        source = unit.source
        own = {node.name for node in unit.level if isinstance(node, _DEFINITIONS)}

        def registers(node: ast.stmt, chain: Chain) -> bool:
            return (
                not chain
                or not self._is_imported(unit, chain)
                or any(
                    used[0] in own or (used[0] in source.imports and not self._is_imported(unit, used))
                    for used in scopes.scan([node]).refs
                )
            )

        for node in unit.level:
            if isinstance(node, _DEFINITIONS):
                for decorator in node.decorator_list:
                    if id(decorator) not in source.stage_decorators and self._may_register(unit, decorator):
                        yield node, True
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                chain = _root_name(node.value.func)
                if chain != ("print",):
                    found = registers(node, chain)
                    if found or not self._only_reports(unit, chain):
                        yield node, found
            elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Subscript | ast.Attribute):
                        yield node, registers(node, _root_name(target.value))
                    elif isinstance(target, ast.Name) and target.id == "_" and isinstance(node.value, ast.Call):
                        yield node, True

    def _handing(self, unit: ModuleUnit) -> Iterator[ast.stmt]:
        """Statements of a script that count though the stage does not reach them. What they put into values of the
        project shows in those; so calls that print, run stages or drive them are passed over, and functions that do no
        more than that."""
        source = unit.source
        definitions = [node for node in unit.level if isinstance(node, _DEFINITIONS)]
        stages = {n.name for n in definitions if any(id(d) in source.stage_decorators for d in n.decorator_list)}
        own = {node.name: node for node in definitions if node.name not in stages}
        visited: set[str] = set()

        def passes_on(node: ast.AST) -> bool:
            for each in ast.walk(node):
                if isinstance(each, ast.Assign | ast.AugAssign):
                    targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                    roots = {_root_name(t.value)[:1] for t in targets if isinstance(t, ast.Attribute | ast.Subscript)}
                    if any(root and root[0] in source.imports for root in roots):
                        return True
                if not isinstance(each, ast.Call):
                    continue
                root = (_root_name(each.func) or ("",))[0]
                if root in own and isinstance(own[root], ast.FunctionDef | ast.AsyncFunctionDef):
                    if root not in visited:
                        visited.add(root)
                        if passes_on(own[root]):
                            return True
                elif root in source.imports and not self._is_imported(unit, (root,)):
                    return True
                elif (
                    root in stages or self._is_cache(source, unit.package, root, 4) or self._only_reports(unit, (root,))
                ):
                    continue
                given = [*each.args, *(keyword.value for keyword in each.keywords)]
                if any(isinstance(n, ast.Name) and n.id in own for one in given for n in ast.walk(one)):
                    return True
            return False

        for node, registers in self._acting(unit):
            if registers and (isinstance(node, _DEFINITIONS) or passes_on(node)):
                yield node
        for node in definitions:
            if isinstance(node, ast.ClassDef) and self._is_subclass(unit, node):
                yield node

    def _only_reports(self, unit: ModuleUnit, chain: Chain) -> bool:
        """Whether a call goes to a module that reports to people and computes nothing: logging, warnings."""
        modules = {absolute(use, unit.package) or "" for use in unit.source.imports.get(chain[0], ())}
        return bool(modules) and {name.partition(".")[0] for name in modules} <= _REPORTING

    def _may_register(self, unit: ModuleUnit, decorator: ast.expr) -> bool:
        chain = _decorator_name(decorator)
        if not chain:
            return True
        kinds = self._kinds(unit, chain[0])
        return bool(kinds - {"library", "distribution"}) or any("register" in name for name in chain)


def _decorator_name(decorator: ast.expr) -> Chain:
    """The dotted name of a decorator, with or without arguments."""
    return scopes.dotted_name(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _root_name(node: ast.expr) -> Chain:
    """The name that an expression such as ``a.b(c).d[e]`` starts from; empty where it starts from none."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return (node.id,) if isinstance(node, ast.Name) else ()


#: For each class of nodes, where it holds statements, handlers and cases, as the text has them.
_IN_ORDER = {cls: sorted(fields, key=cls._fields.index) for cls, fields in HOLDERS.items()}


def _module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    stack: list[ast.AST] = list(reversed(tree.body))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, _DEFINITIONS):
            continue
        if isinstance(node, ast.If) and (scopes.is_type_checking(node) or _is_main_guard(node)):
            stack.extend(reversed(node.orelse))
            continue
        for field in reversed(_IN_ORDER[type(node)]):
            stack.extend(reversed(getattr(node, field)))


def _is_main_guard(node: ast.If) -> bool:
    return isinstance(node.test, ast.Compare) and scopes.dotted_name(node.test.left) == ("__name__",)
