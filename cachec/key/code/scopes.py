"""Which outer names a piece of syntax uses, and what it imports while it runs.

The scope rules are those of the Python language reference, section 4.2.2: functions, lambdas, comprehensions and
classes are scopes; a class scope is not seen from functions inside it. Annotations are not followed: they decide
nothing about what a function computes. Code under ``if TYPE_CHECKING`` never runs and is not followed either.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator, Sequence

import msgspec

Chain = tuple[str, ...]

#: Calls that run code found by a computed place; nothing tells which code that is.
_LOADERS = frozenset({"spec_from_file_location", "run_path", "run_module", "exec_module", "load_module", "find_loader"})
_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
_LEAVES = frozenset(
    {"ctx", "op", "ops", "id", "attr", "arg", "name", "kind", "annotation", "type_comment", "conversion"}
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class ImportUse(msgspec.Struct, frozen=True):
    """A use of something imported: ``chain`` are the attributes taken from it, None where it is never used."""

    module: str
    #: Leading dots.
    level: int
    #: What ``from module import name`` takes (``*`` too), empty for the module itself.
    name: str
    chain: Chain | None
    #: Inside a ``try`` that catches the ImportError.
    guarded: bool

    def of(self, chain: Chain | None) -> ImportUse:
        """The same import with other attributes taken."""
        return ImportUse(self.module, self.level, self.name, chain, self.guarded)


class Uses(msgspec.Struct, frozen=True):
    """refs: free names with the attributes taken from them, in order of appearance. computed: imports of computed
    names, in words."""

    refs: tuple[Chain, ...]
    imports: tuple[ImportUse, ...]
    computed: tuple[str, ...]


#: What takes an attribute that is named by a text.
_TAKING = frozenset({("getattr",), ("hasattr",)})


class _LexicalScope:
    __slots__ = ("bound", "imports", "kind", "outer", "parent")

    def __init__(self, kind: str, parent: _LexicalScope | None) -> None:
        self.kind = kind
        self.parent = parent
        self.bound: set[str] = set()
        self.outer: dict[str, str] = {}  # name -> "global" or "nonlocal"
        self.imports: dict[str, list[ImportUse]] = {}


_Frame = tuple[ast.AST, _LexicalScope, bool]


class _Scan:
    def __init__(self, dropped: Container[int] = (), outlined: ast.ClassDef | None = None) -> None:
        self.dropped = dropped
        self.outlined = {id(each) for each in outlined.body} if outlined is not None else ()
        self.root = _LexicalScope("root", None)
        self.loads: list[tuple[Chain, _LexicalScope]] = []
        self.imports: list[ImportUse] = []
        self.computed: list[str] = []
        self.importing: list[_LexicalScope] = []
        self.stack: list[_Frame] = []

    def push(self, nodes: Iterable[ast.AST | None], scope: _LexicalScope, guarded: bool) -> None:
        for node in nodes:
            if node is not None:
                self.stack.append((node, scope, guarded))

    def run(self) -> None:
        stack = self.stack
        while stack:
            node, scope, guarded = stack.pop()
            kind = type(node)
            if kind is ast.Name:
                if type(node.ctx) is ast.Load:  # type: ignore[attr-defined]
                    self.loads.append(((node.id,), scope))  # type: ignore[attr-defined]
                else:
                    scope.bound.add(node.id)  # type: ignore[attr-defined]
                continue
            visit = _VISITS.get(kind)
            if visit is not None:
                visit(self, node, scope, guarded)
                continue
            for field in _CHILDREN[kind]:
                value = getattr(node, field, None)
                if isinstance(value, list):
                    for one in value:
                        if isinstance(one, ast.AST):
                            stack.append((one, scope, guarded))
                elif isinstance(value, ast.AST):
                    stack.append((value, scope, guarded))

    # --- names

    def Attribute(self, node: ast.Attribute, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        # What is stored to or deleted counts as a use of the object itself: it changes it.
        attributes = [node.attr] if isinstance(node.ctx, ast.Load) else []
        value = node.value
        while isinstance(value, ast.Attribute):
            attributes.append(value.attr)
            value = value.value
        if isinstance(value, ast.Name):
            chain = (value.id, *reversed(attributes))
            self.loads.append((chain if isinstance(node.ctx, ast.Load) else (value.id,), scope))
        else:
            self.push([value], scope, guarded)

    def without_dropped(self, decorators: list[ast.expr]) -> list[ast.expr]:
        return [each for each in decorators if id(each) not in self.dropped]

    def bind(self, name: str, scope: _LexicalScope) -> None:
        scope.bound.add(name)

    def NamedExpr(self, node: ast.NamedExpr, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        holder = scope
        while holder.kind == "comprehension" and holder.parent is not None:
            holder = holder.parent
        self.bind(node.target.id, holder)
        self.push([node.value], scope, guarded)

    def Global(self, node: ast.Global, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        scope.outer.update(dict.fromkeys(node.names, "global"))

    def Nonlocal(self, node: ast.Nonlocal, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        scope.outer.update(dict.fromkeys(node.names, "nonlocal"))

    def ExceptHandler(self, node: ast.ExceptHandler, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        if node.name:
            self.bind(node.name, scope)
        self.push([node.type, *node.body], scope, guarded)

    def MatchAs(self, node: ast.MatchAs, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        if node.name:
            self.bind(node.name, scope)
        self.push([node.pattern], scope, guarded)

    def MatchStar(self, node: ast.MatchStar, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        if node.name:
            self.bind(node.name, scope)

    def MatchMapping(self, node: ast.MatchMapping, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        if node.rest:
            self.bind(node.rest, scope)
        self.push([*node.keys, *node.patterns], scope, guarded)

    def AnnAssign(self, node: ast.AnnAssign, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        self.push([node.target, node.value], scope, guarded)

    def TypeAlias(self, node: ast.AST, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        self.bind(node.name.id, scope)  # type: ignore[attr-defined]

    # --- scopes

    def FunctionDef(self, node: ast.FunctionDef, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        self.bind(node.name, scope)
        defaults = [d for d in (*node.args.defaults, *node.args.kw_defaults) if d is not None]
        self.push([*self.without_dropped(node.decorator_list), *defaults], scope, guarded)
        if id(node) not in self.outlined:
            self.function(node, scope)

    def AsyncFunctionDef(self, node: ast.AsyncFunctionDef, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        self.FunctionDef(node, scope, guarded)  # type: ignore[arg-type]

    def Lambda(self, node: ast.Lambda, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        self.push([*node.args.defaults, *node.args.kw_defaults], scope, guarded)
        self.function(node, scope)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, parent: _LexicalScope) -> None:
        """The inside of a function alone: parameters and body, not decorators and defaults."""
        scope = _LexicalScope("function", parent)
        args = node.args
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
            if arg is not None:
                scope.bound.add(arg.arg)
        for parameter in getattr(node, "type_params", ()):
            scope.bound.add(parameter.name)
        self.push(node.body if isinstance(node.body, list) else [node.body], scope, False)

    def ClassDef(self, node: ast.ClassDef, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        self.bind(node.name, scope)
        inner = _LexicalScope("class", scope)
        inner.bound.update(("__class__", "__module__", "__qualname__"))
        outer = scope
        parameters = getattr(node, "type_params", ())
        if parameters:
            outer = inner.parent = _LexicalScope("function", scope)
            outer.bound.update(parameter.name for parameter in parameters)
        self.push(
            [*self.without_dropped(node.decorator_list), *node.bases, *(k.value for k in node.keywords)], outer, guarded
        )
        self.push(node.body, inner, guarded)

    def comprehension_node(self, node: ast.AST, scope: _LexicalScope, guarded: bool) -> None:
        generators: list[ast.comprehension] = node.generators  # type: ignore[attr-defined]
        inner = _LexicalScope("comprehension", scope)
        self.push([generators[0].iter], scope, guarded)
        for number, generator in enumerate(generators):
            self.push([generator.target, *([generator.iter] if number else []), *generator.ifs], inner, guarded)
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]  # type: ignore[attr-defined]
        self.push(results, inner, guarded)

    ListComp = SetComp = DictComp = GeneratorExp = comprehension_node

    # --- imports

    def Import(self, node: ast.Import, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        self.import_names(node, scope, guarded)
        for alias in node.names:
            if "." in alias.name and not alias.asname:  # `import a.b` binds `a` and runs `a.b`
                self.imports.append(ImportUse(alias.name, 0, "", None, guarded))

    def ImportFrom(self, node: ast.ImportFrom, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        self.import_names(node, scope, guarded)

    def import_names(self, node: ast.Import | ast.ImportFrom, scope: _LexicalScope, guarded: bool) -> None:
        if scope is not self.root and not scope.imports:
            self.importing.append(scope)
        for name, use in import_bindings(node, guarded):
            if name != "*":
                self.bind(name, scope)
                scope.imports.setdefault(name, []).append(use)

    def Try(self, node: ast.Try, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        self.push([*node.handlers, *node.orelse, *node.finalbody], scope, guarded)
        self.push(node.body, scope, guarded or catches_import_error(node))

    def TryStar(self, node: ast.AST, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        self.Try(node, scope, guarded)  # type: ignore[arg-type]

    def If(self, node: ast.If, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        if is_type_checking(node):
            self.push(node.orelse, scope, guarded)
        else:
            self.push([node.test, *node.body, *node.orelse], scope, guarded)

    def Call(self, node: ast.Call, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        chain = dotted_name(node.func)
        verb = chain[-1] if chain else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if verb in ("import_module", "__import__") or chain[-3:] == ("sys", "modules", "get"):
            self.named_import(node.args[0] if node.args else None, node, scope, guarded or verb == "get")
        elif verb in _LOADERS:
            self.computed.append(f"calls {verb}() on line {node.lineno}")
        if chain in _TAKING and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            holder, name = dotted_name(node.args[0]), node.args[1].value
            if holder and isinstance(name, str):
                self.loads.append(((*holder, name), scope))
        self.push([node.func, *node.args, *(k.value for k in node.keywords)], scope, guarded)

    def Subscript(self, node: ast.Subscript, scope: _LexicalScope, guarded: bool) -> None:  # noqa: N802
        if dotted_name(node.value) == ("sys", "modules") and isinstance(node.ctx, ast.Load):
            self.named_import(node.slice, node, scope, True)
        self.push([node.value, node.slice], scope, guarded)

    def named_import(self, name: ast.expr | None, node: ast.expr, scope: _LexicalScope, guarded: bool) -> None:
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and not name.value.startswith("."):
            self.imports.append(ImportUse(name.value, 0, "", (), guarded))
        else:
            self.computed.append(f"imports a module by a computed name on line {node.lineno}")

    # --- the answer

    def uses(self) -> Uses:
        refs: dict[Chain, None] = {}
        imports: dict[ImportUse, None] = dict.fromkeys(self.imports)
        used: set[tuple[int, str]] = set()
        for chain, scope in self.loads:
            holder = self.holder(chain[0], scope)
            if holder is None:
                refs[chain] = None
            elif chain[0] in holder.imports:
                used.add((id(holder), chain[0]))
                imports.update((use.of(chain[1:]), None) for use in holder.imports[chain[0]])
        for scope in self.importing:
            for name, found in scope.imports.items():
                if (id(scope), name) not in used:
                    imports.update((use.of(None), None) for use in found)
        return Uses(tuple(refs), tuple(imports), tuple(self.computed))

    def holder(self, name: str, scope: _LexicalScope) -> _LexicalScope | None:
        """The scope inside the unit that binds the name, None where it comes from outside."""
        direct = True
        here: _LexicalScope | None = scope
        while here is not None and here is not self.root:
            if here.kind != "class" or direct:
                kind = here.outer.get(name)
                if kind == "global":
                    return None
                if kind is None and name in here.bound:
                    return here
            direct = direct and here.kind == "comprehension"
            here = here.parent
        return None


_VISITS = {
    cls: getattr(_Scan, cls.__name__)
    for cls in vars(ast).values()
    if isinstance(cls, type) and hasattr(_Scan, cls.__name__)
}
#: For each class of nodes, the fields that may hold names: not contexts, operators and texts.
_CHILDREN = {
    cls: [each for each in cls._fields if each not in _LEAVES]
    for cls in vars(ast).values()
    if isinstance(cls, type) and issubclass(cls, ast.AST)
}


def scan(nodes: Sequence[ast.AST], dropped: Container[int] = ()) -> Uses:
    """What these statements or expressions take from outside; nodes whose ``id`` is in ``dropped`` are passed over.

    Names that they bind themselves at their own level count as outside: another statement may bind them again.
    """
    work = _Scan(dropped)
    work.push([node for node in nodes if id(node) not in dropped], work.root, False)
    work.run()
    return work.uses()


def scan_function(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Uses:
    """What the inside of a function takes from outside: not its decorators and defaults, which ran before."""
    work = _Scan()
    work.function(node, work.root)
    work.run()
    return work.uses()


def scan_class(node: ast.ClassDef, dropped: Container[int] = ()) -> Uses:
    """What a class statement takes from outside while it runs: not what is inside of its methods."""
    work = _Scan(dropped, node)
    work.push([node], work.root, False)
    work.run()
    return work.uses()


def import_bindings(node: ast.Import | ast.ImportFrom, guarded: bool = False) -> Iterator[tuple[str, ImportUse]]:
    """Each name that an import statement binds, and what it stands for (``*`` for a star import)."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            use = ImportUse(node.module or "", node.level, alias.name, (), guarded)
            yield alias.asname or alias.name, use
        elif alias.asname:
            yield alias.asname, ImportUse(alias.name, 0, "", (), guarded)
        else:
            yield alias.name.partition(".")[0], ImportUse(alias.name.partition(".")[0], 0, "", (), guarded)


def dotted_name(node: ast.AST) -> Chain:
    """``a.b.c`` as a tuple; empty for any other expression."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return (node.id, *reversed(attributes)) if isinstance(node, ast.Name) else ()


def catches_import_error(node: ast.Try) -> bool:
    """Whether a handler of this ``try`` catches the error of a missing module."""
    for handler in node.handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        if any(kind is None or (dotted_name(kind) or ("",))[-1] in _IMPORT_ERRORS for kind in kinds):
            return True
    return False


def is_type_checking(node: ast.If) -> bool:
    """Whether this is ``if TYPE_CHECKING:``, which never runs."""
    return (dotted_name(node.test) or ("",))[-1] == "TYPE_CHECKING"
