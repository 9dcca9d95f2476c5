"""Single changes of a Python source, each of which some test should notice.

Left out is what changes nothing by construction: texts that people read (of exceptions, of warnings, with blanks in
them), labels and tokens that are only handed on or hashed (all digests are others then, alike), how long and how much
(limits written as powers of two, or named as limits and waits are), docstrings, annotations, ``__slots__``,
``__all__``, ``__repr__``, imports, what only type checkers read, keywords and decorators that make nothing but
speed or a check of our own code (``HARMLESS``), calls that only take time or save it (``_TIMING``), the refusal of a
state that can't be (``raise AssertionError``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_SWAPPED: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(),
    ast.NotIn: ast.In(),
}
#: Of these a swapped comparison is the negation.
_NEGATED = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)

#: Keywords and decorators without which the same is done, slower or with one check of our own code less.
HARMLESS = frozenset(
    {
        *("encoding", "repr", "slots", "kw_only", "frozen", "strict", "stacklevel", "daemon", "name", "maxsize"),
        "gc",
        *("cache", "lru_cache", "overload", "override", "final", "abstractmethod", "runtime_checkable", "wraps"),
    }
)
#: Calls of which a text that is written there is only hashed.
_HASHED = frozenset({"part", "Hasher", "frame", "_framed", "_text", "_parts", "items", "mapping", "unordered", "label"})
#: Calls that change nothing but when something is done: sleep, and advice for the kernel's read-ahead.
_TIMING = frozenset({"sleep", "posix_fadvise"})
_UNREAD = frozenset({"__repr__", "__str__", "__rich__"})
_CALLS_OF_TEXT = re.compile(
    r"(Error|Fault|Warning|Exception|Unfit)$|^(warn|warning|debug|info|note|TypeVar|NewType|cast)$"
)
_KEYWORDS_OF_TEXT = frozenset({"hint", "message", "help", "doc"})
#: Names of what may as well be a little more or less.
_LIMITS = re.compile(r"(^|_)(MAX|SECONDS|NS|PATIENCE|PAUSE|ATTEMPTS|KEPT|SHOWN|QUEUED|DECODED|BUFFER|timeout)(_|$)")
_WORDS = re.compile(r"[A-Za-z,.:;)] +[A-Za-z(]")


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes of ``start`` to ``end`` of a source become ``text``."""

    path: str
    line: int
    operator: str
    start: int
    end: int
    old: str
    text: str

    def applied(self, source: bytes) -> bytes:
        """The changed source."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    @property
    def change(self) -> str:
        """What becomes of what."""
        old, new = (" ".join(each.split()) for each in (self.old, self.text))
        return f"{self.operator}: {old} -> {new or '(nothing)'}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.change}"


def mutants(path: str, source: bytes) -> list[Mutant]:
    """All changes of one source, in the order of its text."""
    found = _Mutants(path, source)
    found.visit(ast.parse(source))
    applied = {each.applied(source): each for each in reversed(found.found)}  # one of those that come to the same
    return sorted(applied.values(), key=lambda each: (each.start, each.end, each.operator, each.text))


class _Mutants(ast.NodeVisitor):
    def __init__(self, path: str, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    # --- places

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _change(self, node: ast.expr | ast.stmt, operator: str, text: str) -> None:
        self._add(node.lineno, operator, *self._span(node), text)

    def _add(self, line: int, operator: str, start: int, end: int, text: str) -> None:
        old = self._source[start:end].decode()
        self.found.append(Mutant(self._path, line, operator, start, end, old, text))

    # --- what is left out

    def visit_Import(self, node: ast.Import) -> None: ...

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and not _LIMITS.search(_name(node.target)):
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        if not isinstance(node.slice, ast.Tuple):
            self.visit(node.slice)

    def visit_Assert(self, node: ast.Assert) -> None: ...

    # --- statements

    def visit_Module(self, node: ast.Module) -> None:
        self._body(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._decorators(node)
        for keyword in node.keywords:
            if keyword.arg not in HARMLESS:
                self.visit(keyword.value)
        self._body(node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in _UNREAD:
            return
        self._decorators(node)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        body = node.body[1:] if _is_text(node.body[0]) else node.body
        if body and len(body) > 1 and not isinstance(body[0], (ast.FunctionDef, ast.With)):
            # The same for a generator, which is one by its `yield`s.
            self._change(body[0], "return early", f"return; {self._text(body[0])}" if _is_simple(body[0]) else "return")
        self._body(node.body)

    def _decorators(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        for each in node.decorator_list:
            called = each.func if isinstance(each, ast.Call) else each
            if _name(called) not in HARMLESS:
                start, end = self._span(each)
                self._add(each.lineno, "no decorator", start - 1, end, "")
            if isinstance(each, ast.Call):
                self._keywords(each)

    def _body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if not _is_text(statement):
                self.visit(statement)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and _name(node.value.func) in _TIMING:
            return
        if isinstance(node.value, (ast.Call, ast.Await, ast.Yield, ast.YieldFrom)):
            self._change(node, "no statement", "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._change(node, "no statement", "pass")
        self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._change(node, "no statement", "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._change(node, "no statement", "pass")

    def visit_Raise(self, node: ast.Raise) -> None:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if raised is None or _name(raised) != "AssertionError":
            self._change(node, "no statement", "pass")  # what it says is text

    def visit_Assign(self, node: ast.Assign) -> None:
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        if names & {"__slots__", "__all__", "__match_args__"}:
            return
        if any(isinstance(target, (ast.Subscript, ast.Attribute)) for target in node.targets):
            self._change(node, "no statement", "pass")
        if isinstance(node.targets[0], ast.Name) and (_is_token(node.value) or _LIMITS.search(node.targets[0].id)):
            return
        if isinstance(node.value, (ast.Tuple, ast.List)) and isinstance(node.targets[0], (ast.Tuple, ast.List)):
            for element in node.value.elts:  # one less can't be unpacked
                if not _is_token(element):
                    self.visit(element)
            return
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Tuple):
            for element in node.value.elts:  # one less can't be unpacked
                self.visit(element)
        elif node.value is not None and not _is_token(node.value):
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in self._text(node.test):
            return
        self._condition(node.test)
        self.visit(node.test)
        self._body(node.body)
        self._body(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)  # negated it never begins or never ends
        self._body(node.body)

    # --- expressions

    def _condition(self, test: ast.expr) -> None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self._change(test, "negated", f"({self._text(test.operand)})")
        elif not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], _NEGATED)):
            self._change(test, "negated", f"not ({self._text(test)})")

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        for each in (node.test, node.body, node.orelse):
            if not _is_token(each):
                self.visit(each)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not isinstance(node.op, ast.LShift):
            self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            other = ast.Compare(node.left, [_SWAPPED[type(node.ops[0])]], node.comparators)
            self._change(node, "swapped comparison", f"({ast.unparse(other)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._change(node, "swapped and, or", f"({ast.unparse(ast.BoolOp(other, node.values))})")
        for each in node.values:
            if not _is_token(each):
                self.visit(each)

    def visit_Call(self, node: ast.Call) -> None:
        if _CALLS_OF_TEXT.search(_name(node.func)):
            return
        self.visit(node.func)
        for each in node.args:
            if not (_name(node.func) in _HASHED and isinstance(each, ast.Constant | ast.JoinedStr)):
                self.visit(each)
        self._keywords(node)

    def _keywords(self, node: ast.Call) -> None:
        for each in node.keywords:
            if each.arg is not None and each.arg not in HARMLESS and each.arg not in _KEYWORDS_OF_TEXT:
                left = ast.Call(node.func, node.args, [other for other in node.keywords if other is not each])
                self._change(node, f"no keyword {each.arg}", ast.unparse(left))
                if not _LIMITS.search(each.arg):
                    self.visit(each.value)

    def _elements(self, node: ast.Tuple | ast.List | ast.Set) -> None:
        if isinstance(node, ast.Set) or isinstance(node.ctx, ast.Load):
            for each in node.elts:
                left = [other for other in node.elts if other is not each]
                other = ast.Set(left) if isinstance(node, ast.Set) else type(node)(left, ast.Load())
                self._change(
                    node, "one element less", ast.unparse(other) if left else f"{type(node).__name__.lower()}()"
                )
        self.generic_visit(node)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        self._elements(node)

    def visit_List(self, node: ast.List) -> None:
        self._elements(node)

    def visit_Set(self, node: ast.Set) -> None:
        self._elements(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for at in range(len(node.keys)):
            left = ast.Dict([*node.keys[:at], *node.keys[at + 1 :]], [*node.values[:at], *node.values[at + 1 :]])
            self._change(node, "one element less", ast.unparse(left))
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        if any(isinstance(each, ast.Constant) and _WORDS.search(f"x{each.value!s}x") for each in node.values):
            return  # people read it
        for at, each in enumerate(node.values):
            if isinstance(each, ast.FormattedValue):
                left = ast.JoinedStr([*node.values[:at], *node.values[at + 1 :]])
                self._change(node, "one element less", ast.unparse(left))

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._change(node, "other constant", repr(not value))
        elif isinstance(value, (int, float)):
            self._change(node, "other constant", repr(value + 1))
            self._change(node, "other constant", f"({value - 1!r})")
        elif isinstance(value, str) and not _WORDS.search(value):
            self._change(node, "other constant", repr(value + "X"))
        elif isinstance(value, bytes) and not _WORDS.search(value.decode("latin-1")):
            self._change(node, "other constant", repr(value + b"X"))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_token(node: ast.expr) -> bool:
    """Whether a text stands for itself: no place where it is, and none that is compared or looked up here."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and bool(node.value)


def _is_simple(node: ast.stmt) -> bool:
    return not hasattr(node, "body")


def lines_of(source: bytes, line: int) -> Iterator[range]:
    """The lines whose tests are related to a change in ``line``, the nearest first: its statement, then what it is in.

    A statement that runs at import is related to the functions that name what it binds.
    """
    tree = ast.parse(source)
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    around.sort(key=lambda node: -node.lineno)
    functions = [node for node in around if isinstance(node, ast.FunctionDef) and line >= node.body[0].lineno]
    if functions:
        yield range(line, line + 1)
        inner = around[0]
        end = inner.body[0].lineno - 1 if hasattr(inner, "body") else inner.end_lineno
        yield range(inner.lineno, max(end or line, inner.lineno) + 1)
        yield range(functions[0].body[0].lineno, (functions[0].end_lineno or line) + 1)
        return
    for node in around:
        if isinstance(node, ast.FunctionDef):  # a default or a decorator
            yield range(node.body[0].lineno, (node.end_lineno or line) + 1)
    targets = [target for node in around for target in getattr(node, "targets", [getattr(node, "target", None)])]
    names = {_name(target) for target in targets if isinstance(target, ast.expr)} - {""}
    for each in ast.walk(tree):
        if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Load) and _name(each) in names:
            yield range(each.lineno, each.lineno + 1)
