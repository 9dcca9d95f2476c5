"""Source files of modules: found without importing anything, parsed once, and matched with code that runs."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Container, Iterator
from functools import cached_property
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from types import CodeType, FunctionType
from typing import Any

import msgspec

from cachec.base import file_ownership, fsio
from cachec.base.display_text import module_of
from cachec.base.distributions import OWN_FOLDER
from cachec.base.fsio import Identity
from cachec.base.hashing import DigestMemory
from cachec.key.code import normalized_syntax, scopes
from cachec.key.code.code_objects import nested_code, same_code
from cachec.key.code.compile_cache import CompileCache
from cachec.key.code.scopes import Chain, ImportUse, Uses

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: Expressions whose loop variables are their own.
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SOURCE_SUFFIX = ".py"

#: Bytes of a source: more than any has.
_MAX_SOURCE = 1 << 26


#: A file, and its text at one time.
TextVersion = tuple[str, str | bytes]
#: A line, from 1, and a column in bytes, from 0.
Place = tuple[int, int]
Span = tuple[Place, Place]
#: All of a text.
WHOLE: Span = ((0, 0), (sys.maxsize, 0))


class Origin(msgspec.Struct, frozen=True):
    """Where a module comes from."""

    #: ``library`` (Python's own, and cachec), ``distribution``, ``project`` or ``absent``.
    kind: str
    name: str
    #: Its file, empty for a namespace package.
    path: str = ""
    #: Where its submodules lie, for a package.
    folders: tuple[str, ...] = ()
    distribution: str = ""

    @property
    def source(self) -> bool:
        """Whether ``path`` is Python source."""
        return self.path.endswith(_SOURCE_SUFFIX)


class SourceText:
    """One parsed source text. What is asked of it is worked out once."""

    def __init__(self, path: str, text: bytes | str, compiled: CompileCache | None = None) -> None:
        """compiled: what is kept of this text between processes."""
        self.path = path
        self.tree: ast.Module = normalized_syntax.parse(text, path)
        self._text = text
        self._compiled = compiled
        self._code: dict[str, list[CodeType]] | None = None
        self._nodes: dict[tuple[str, int], list[Function]] | None = None
        self._lambdas = False
        self._bindings: dict[str, list[ast.stmt]] | None = None
        self._imports: dict[str, list[ImportUse]] = {}
        self._uses: dict[tuple[int, bool], Uses] = {}
        self._syntax: dict[int, bytes] = {}
        self._definitions: dict[str, Definition] | None = None
        #: ``id`` of the decorators that make a stage: they have parts of their own in the key.
        self.stage_decorators: frozenset[int] = frozenset()

    # --- what the module binds

    @property
    def bindings(self) -> dict[str, list[ast.stmt]]:
        """Each module-level name: the top-level statements that may bind it, plain imports left out."""
        if self._bindings is None:
            self._bindings = {}
            for statement in self.tree.body:
                for name in self._bound_names(statement):
                    if statement not in (statements := self._bindings.setdefault(name, [])):
                        statements.append(statement)
        return self._bindings

    @property
    def imports(self) -> dict[str, list[ImportUse]]:
        """Each name that a module-level import binds; ``*`` for star imports."""
        _ = self.bindings
        return self._imports

    def imports_of(self, statement: ast.stmt) -> list[ImportUse]:
        """The imports that a module-level statement makes while it runs, as uses of which nothing is taken."""
        imports: list[ImportUse] = []
        stack: list[tuple[ast.AST, bool]] = [(statement, False)]
        while stack:
            node, guarded = stack.pop()
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports += [use.of(None) for _, use in scopes.import_bindings(node, guarded)]
            inside = guarded or (isinstance(node, ast.Try) and scopes.catches_import_error(node))
            stack.extend((child, inside) for child in _statements(node) if not isinstance(node, _DEFINITIONS))
        return imports

    def _bound_names(self, statement: ast.stmt) -> Iterator[str]:
        stack: list[tuple[ast.AST, bool]] = [(statement, False)]
        while stack:
            node, guarded = stack.pop()
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name, use in scopes.import_bindings(node, guarded):
                    self._imports.setdefault(name, []).append(use)
                    if node is not statement:
                        yield name
            elif isinstance(node, _DEFINITIONS):
                yield node.name
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                yield node.id
            elif isinstance(node, _COMPREHENSIONS):
                yield from (each.target.id for each in ast.walk(node) if isinstance(each, ast.NamedExpr))
            elif isinstance(node, ast.Lambda | ast.Name | ast.Constant) or (
                isinstance(node, ast.If) and scopes.is_type_checking(node)
            ):
                continue
            else:
                bound = getattr(node, "name", None) or getattr(node, "rest", None)  # handlers and patterns
                if isinstance(bound, str):
                    yield bound
                inside = guarded or (isinstance(node, ast.Try) and scopes.catches_import_error(node))
                stack.extend((child, inside) for child in ast.iter_child_nodes(node))

    def definition(self, qualname: str) -> Definition | None:
        """The class or function statement of this qualified name; None where there is none, or more than one."""
        if self._definitions is None:
            self._definitions = {}
            doubled: set[str] = set()
            stack: list[tuple[ast.AST, str]] = [(self.tree, "")]
            while stack:
                node, prefix = stack.pop()
                for child in _statements(node):
                    inner = prefix
                    if isinstance(child, _DEFINITIONS):
                        name = prefix + child.name
                        if name in self._definitions:
                            doubled.add(name)
                        self._definitions[name] = child
                        inner = f"{name}." if isinstance(child, ast.ClassDef) else f"{name}.<locals>."
                    stack.append((child, inner))
            for name in doubled:
                del self._definitions[name]
        return self._definitions.get(qualname)

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Every function statement, wherever it is."""
        functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        pending: list[ast.AST] = [self.tree]
        while pending:
            node = pending.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append(node)
            pending.extend(_statements(node))
        return functions

    @cached_property
    def mutated_names(self) -> frozenset[str]:
        """Names of which the module stores an item, or takes an attribute (``table.append``), anywhere."""
        taken = (each for each in ast.walk(self.tree) if isinstance(each, ast.Attribute | ast.Subscript))
        owners = (each.value for each in taken if isinstance(each, ast.Attribute) or not isinstance(each.ctx, ast.Load))
        return frozenset(each.id for each in owners if isinstance(each, ast.Name))

    # --- syntax and names

    @property
    def version(self) -> TextVersion:
        """What tells this text of a file from an earlier one."""
        return self.path, self._text

    @property
    def text(self) -> bytes:
        """The whole text."""
        return self._text.encode("utf-8", "surrogatepass") if isinstance(self._text, str) else self._text

    def syntax(self, node: ast.AST) -> bytes:
        """Normalised syntax without the decorators of stages."""
        data = self._syntax.get(id(node))
        if data is None:
            data = self._syntax[id(node)] = normalized_syntax.normalise(node, self.stage_decorators)
        return data

    def class_syntax(self, node: ast.ClassDef, apart: Container[str]) -> bytes:
        """Normalised syntax of a class without the methods named in ``apart``, which have parts of their own.

        A method that is decorated or defined twice stays.
        """
        plain = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        names = [each.name for each in plain]
        omitted = {
            id(each) for each in plain if each.name in apart and not each.decorator_list and names.count(each.name) == 1
        }
        return normalized_syntax.normalise(node, self.stage_decorators | omitted)

    def uses(self, node: ast.AST) -> Uses:
        """What a statement, or the whole module, takes from outside."""
        uses = self._uses.get((id(node), False))
        if uses is None:
            nodes = node.body if isinstance(node, ast.Module) else [node]
            uses = self._uses[id(node), False] = scopes.scan(nodes, self.stage_decorators)
        return uses

    def function_uses(self, node: Function) -> Uses:
        """What the inside of a function takes from outside."""
        uses = self._uses.get((id(node), True))
        if uses is None:
            uses = self._uses[id(node), True] = scopes.scan_function(node)
        return uses

    def class_uses(self, node: ast.ClassDef) -> Uses:
        """What a class statement takes from outside while it runs: not what is inside of its methods."""
        uses = self._uses.get((id(node), True))
        if uses is None:
            uses = self._uses[id(node), True] = scopes.scan_class(node, self.stage_decorators)
        return uses

    def decorator_refs(self, node: Function) -> tuple[Chain, ...]:
        """What the decorators of a function take from outside, stages left out."""
        if isinstance(node, ast.Lambda) or not node.decorator_list:
            return ()
        return scopes.scan(node.decorator_list, self.stage_decorators).refs

    # --- code that runs

    def match(self, code: CodeType) -> Function | None:
        """The function or lambda of this text that ``code`` was compiled from; None where the text is another now.

        The text is compiled and the code compared, so that neither a clock nor a file's time stamp is trusted.
        """
        equal = self._equal(code)
        return self._node_of(equal) if equal is not None else None

    def place_of(self, code: CodeType) -> Place | None:
        """A place in this text inside of what ``code``, of whatever kind, was compiled from; None where the text is
        another."""
        equal = self._equal(code)
        if equal is None:
            return None
        places = [
            (line, column) for line, _, column, end in equal.co_positions() if line and column is not None and end
        ]
        return max(places, default=(equal.co_firstlineno, -1))  # the last instruction: the first may be of no place

    def _equal(self, code: CodeType) -> CodeType | None:
        if self._code is None:
            if self._compiled is not None and self._compiled.holds(code):
                return code
            codes = nested_code(compile(self._text, self.path, "exec", dont_inherit=True))
            if self._compiled is not None:
                self._compiled.keep(codes)
            self._code = {}
            for one in codes:
                self._code.setdefault(one.co_qualname, []).append(one)
        equal = [one for one in self._code.get(code.co_qualname, ()) if same_code(one, code)]
        # Of equal ones (two lambdas of one form) the one at the same place; any other means the same.
        equal.sort(key=lambda one: (one.co_firstlineno != code.co_firstlineno, one.co_linetable != code.co_linetable))
        return equal[0] if equal else None

    def names_at(self, line: int) -> tuple[str, ...]:
        """The module-level names that the statement around a line binds; none where it binds none."""
        names = []
        for name, statements in self.bindings.items():
            for each in statements:
                first = min([each.lineno, *(one.lineno for one in getattr(each, "decorator_list", ()))])
                if first <= line <= (each.end_lineno or first):
                    names.append(name)
        return tuple(sorted(set(names)))

    def _node_of(self, code: CodeType) -> Function | None:
        if self._nodes is None:
            self._nodes = {}
            for node in self.functions:
                first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
                self._nodes.setdefault((node.name, first), []).append(node)
        if code.co_name == "<lambda>" and not self._lambdas:
            self._lambdas = True
            for each in ast.walk(self.tree):
                if isinstance(each, ast.Lambda):
                    self._nodes.setdefault(("<lambda>", each.lineno), []).append(each)
        nodes = self._nodes.get((code.co_name, code.co_firstlineno), [])
        if len(nodes) > 1:
            places = set(code.co_positions())
            nodes = [node for node in nodes if isinstance(node, ast.Lambda) and _place(node.body) in places] or nodes
            # an outer lambda holds the position of an inner one only through its own instructions, never the reverse
        return nodes[0] if nodes else None


#: For each class of nodes that holds statements (of expressions, none does), where.
HOLDERS: dict[type[ast.AST], list[str]] = {
    cls: [field for field in ("body", "orelse", "finalbody", "handlers", "cases") if field in cls._fields]
    for cls in vars(ast).values()
    if isinstance(cls, type) and issubclass(cls, (ast.Module, ast.stmt, ast.ExceptHandler, ast.match_case))
}


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements (handlers and cases too) directly inside a statement."""
    for field in HOLDERS.get(type(node), ()):
        yield from getattr(node, field)


def _place(node: ast.expr) -> tuple[int | None, int | None, int | None, int | None]:
    return (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)


#: What all cells together have for a path.
CELLS = "<cells>"


def is_cell(name: str) -> bool:
    """Whether code of this name was typed in: into IPython, a kernel of Jupyter (which names files that are never
    there), or Python itself."""
    return name.startswith(("<ipython-input-", "<python-input-")) or f"{os.sep}ipykernel_" in name


def _cells() -> list[str]:
    linecache = sys.modules.get("linecache")  # where they are left; who imports it where there are none waits for that
    return [] if linecache is None else list(filter(is_cell, list(linecache.cache)))


def cell_names() -> bytes:
    """Which cells were run so far: a text that changes with each new one."""
    return repr(_cells()).encode()


class Sources:
    """Parsed source files, kept by path and identity."""

    def __init__(self, memory: DigestMemory | None = None) -> None:
        self._memory = memory
        self._known: dict[str, tuple[Identity | None, SourceText | None]] = {}

    def load(self, path: str) -> SourceText | None:
        """The source at ``path`` as it is now; None where it can't be read or parsed."""
        if path.startswith("<") or is_cell(path):
            return self._interactive_source(path)
        identity = fsio.identity_if_there(path)
        if identity is None:
            return None
        known = self._known.get(path)
        if known is not None and known[0] == identity:
            return known[1]
        source: SourceText | None
        try:
            text = file_ownership.read_regular(path, _MAX_SOURCE)  # a row of a remote may have named any file
            compiled = None if self._memory is None else CompileCache(path, text, self._memory)
            source = SourceText(path, text, compiled)
        except (OSError, SyntaxError, ValueError):
            source = None
        self._known[path] = (identity, source)
        return source

    def cells(self) -> SourceText | None:
        """All that was typed into this process, as one text: each cell of a notebook, in the order in which it was run
        first. None where there is nothing, or it is no text together."""
        texts = [self._interactive_source(name) for name in _cells()]
        return self._text_of(CELLS, "\n".join(each._text for each in texts if each is not None))  # type: ignore[misc]

    def _interactive_source(self, name: str) -> SourceText | None:
        """Source that was typed in: notebooks and interactive sessions leave it with ``linecache``."""
        import linecache

        return self._text_of(name, "".join(linecache.getlines(name)))

    def _text_of(self, name: str, text: str) -> SourceText | None:
        known = self._known.get(name)
        if known is not None and known[1] is not None and known[1]._text == text:
            return known[1]
        source: SourceText | None
        try:
            source = SourceText(name, text) if text else None
        except (SyntaxError, ValueError):
            source = None
        self._known[name] = (None, source)
        return source


class Locator:
    """Where modules come from, told without importing them."""

    def __init__(self, owner: Callable[[str], str | None]) -> None:
        self._owner = owner
        self._files: dict[str, tuple[str, str]] = {}
        library = os.path.dirname(os.path.realpath(os.__file__))
        self._library = (library + os.sep, os.path.dirname(os.__file__) + os.sep)
        self._own = (OWN_FOLDER, os.path.realpath(OWN_FOLDER) + os.sep)
        self._origins: dict[str, Origin] = {}

    def of_file(self, path: str) -> tuple[str, str]:
        """Kind (as of ``Origin``) and distribution of a file. What was told of a path once is kept."""
        origin = self._files.get(path)
        if origin is None:
            origin = self._files[path] = self._classify(path)
        return origin

    def is_own(self, value: object) -> bool:
        """Whether a value is a function of the project."""
        return isinstance(value, FunctionType) and self.of_file(value.__code__.co_filename)[0] == "project"

    def _classify(self, path: str) -> tuple[str, str]:
        if path.startswith("<frozen"):
            return ("library", "")
        if path.startswith("<"):
            return ("project", "")
        if path.startswith(self._own):
            return ("library", "")
        site = f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path
        if not site and path.startswith(self._library):
            return ("library", "")
        owner = self._owner(path)
        return ("project", "") if owner is None else ("distribution", owner)

    def refresh(self) -> None:
        """Look for every module anew."""
        self._origins.clear()

    def find_uncached(self, name: str) -> Origin:
        """As ``find``, looked for anew."""
        return self._find(name)

    def find(self, name: str) -> Origin:
        """Where ``import name`` would find the module now, its parents not imported either."""
        origin = self._origins.get(name)
        if origin is None:
            origin = self._origins[name] = self._find(name)
        return origin

    def _find(self, name: str) -> Origin:
        parent, _, _ = name.rpartition(".")
        path: list[str] | None = None
        if parent:
            above = self.find(parent)
            if above.kind == "library":
                return Origin("library", name)
            if not above.folders:
                return Origin("absent", name)
            path = list(above.folders)
        spec = None
        for finder in _finders(self._is_own_finder):
            try:
                spec = finder.find_spec(name, path)
            except KeyError:  # PathFinder found a namespace package and misses its parent in sys.modules
                tail = name.rpartition(".")[2]
                inside = [os.path.join(folder, tail) for folder in path or ()]
                return Origin("project", name, "", tuple(folder for folder in inside if os.path.isdir(folder)))
            if spec is not None:
                break
        if spec is None:
            return Origin("absent", name)
        folders = tuple(spec.submodule_search_locations or ())
        # A finder of the project's need not say that what it names is a place.
        has_location = spec.has_location or (self._is_own_finder(finder) and os.path.isfile(spec.origin or ""))
        if spec.origin in ("built-in", "frozen") or (not has_location and not folders):
            return Origin("library", name, "", folders)
        place = spec.origin if has_location and spec.origin else ""
        if not place:
            return Origin("project", name, "", folders)  # a namespace package: nobody's file
        kind, distribution = self.of_file(place)
        return Origin(kind, name, place, folders, distribution)

    def _is_own_finder(self, finder: object) -> bool:
        """Whether a finder is the project's own."""
        cls = finder if isinstance(finder, type) else type(finder)
        file = getattr(sys.modules.get(module_of(cls)), "__file__", None)
        return isinstance(file, str) and self.of_file(file)[0] == "project"


def _finders(is_own: Callable[[object], bool]) -> list[Any]:
    """The finders of Python itself, then those of editable installs, before them the project's that stand there; others
    may import when asked, and are not."""
    own: list[Any] = [BuiltinImporter, FrozenImporter, PathFinder]
    others = [each for each in sys.meta_path if each not in own and hasattr(each, "find_spec")]
    editable = [each for each in others if str(getattr(each, "__module__", "")).startswith("__editable__")]
    at = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
    return [*(each for each in others if each in sys.meta_path[:at] and is_own(each)), *own, *editable]


def absolute(use: ImportUse, package: str) -> str | None:
    """The full name of the module that an import statement in ``package`` names; None where the dots lead too far."""
    if not use.level:
        return use.module
    above = package.split(".") if package else []
    if use.level > len(above):
        return None
    prefix = above[: len(above) - use.level + 1]
    return ".".join([*prefix, use.module] if use.module else prefix)
