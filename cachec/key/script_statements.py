"""Selects the statements of a script that a worker may execute again, to rebuild the caller's ``__main__``.

The rule looks at syntax alone. Executed again are

1. imports, definitions of functions and classes with their decorators, and type aliases;
2. ``name = value`` and ``known.attribute = value`` where making the value has no effect: literals, lambdas, names that
   statements of this list bound, and calls of ``PURE_CALLS`` with such arguments;
3. calls as statements whose name says that they register or set something (``SETTING``), with such arguments;
4. ``cachec.Cache(...)``, as an imported module makes its own;
5. ``if`` and ``try`` that hold nothing else and test nothing but names and literals.

All else is left to the caller: loops, other calls, what is under ``if __name__ == "__main__":``. A name that such a
statement binds is *open*: its value must be sent.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from typing import TypeGuard

#: Calls without an effect, by the last words of what is called: transformations of functions, kinds of types,
#: containers, locks and paths. Called through imported and built-in names only.
PURE_CALLS = frozenset(
    {
        "partial",
        "wraps",
        "cache",
        "lru_cache",
        "singledispatch",
        "attrgetter",
        "itemgetter",
        "methodcaller",
        "re.compile",
    }
    | {"jit", "pjit", "vmap", "pmap", "grad", "value_and_grad", "jacfwd", "jacrev", "hessian", "checkpoint", "remat"}
    | {"custom_vjp", "custom_jvp", "named_call", "shard_map", "torch.compile", "re.compile"}
    | {"namedtuple", "NamedTuple", "TypedDict", "NewType", "TypeVar", "ParamSpec", "TypeVarTuple", "make_dataclass"}
    | {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag", "object", "getLogger"}
    | {"dict", "list", "set", "frozenset", "tuple", "deque", "defaultdict", "OrderedDict", "Counter"}
    | {"WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "ContextVar", "local"}
    | {"Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore"}
    | {"Path", "PurePath", "dirname", "abspath", "realpath", "join", "basename", "resolve", "absolute", "joinpath"}
)

#: Calls that return a path, on which operators have no effect.
_PATHS = frozenset({"Path", "PurePath", "resolve", "absolute", "joinpath"})

#: Calls that register or set something, by the last words of what is called.
SETTING = re.compile(
    r"(.*\.)?(register\w*|DEFINE_\w+|set_(?!up)\w+|seterr|setcontext|setlocale|enable\w*|disable\w*|use|use_\w+)"
    r"|(.*\.)?add_(\w*constructor|\w*representer|\w*resolver|safe_globals)"
    r"|(.*\.)?(seed|manual_seed|filterwarnings|simplefilter|config\.update|logging\.basicConfig)"
)

#: Of these modules the caller's state is sent, or a worker must not repeat what is done with them: run code at exit,
#: talk to servers of experiments.
_NOT_REPEATED = frozenset(
    {"sys", "os", "atexit", "signal", "threading", "multiprocessing"}
    | {"mlflow", "wandb", "ray", "comet_ml", "neptune", "clearml", "streamlit"}
)

#: Arguments of ``logging.basicConfig`` that open files.
_OPENING = frozenset({"filename", "handlers", None})

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_REPEATED = (ast.Import, ast.ImportFrom, ast.Pass)


class Selection:
    """Chooses statements of one script, in the order of its text.

    open: the names that statements which were left out bind.
    """

    def __init__(self, bound: Iterable[str]) -> None:
        """bound: every name that the script binds anywhere at its top level."""
        self.open: set[str] = set()
        #: Names of imports, with the top module of each, and of what Python has built in.
        self._imported = dict.fromkeys(set(dir(builtins)) - set(bound), "builtins")
        self._known = self._imported.keys() | {"__file__", "__name__", "__doc__", "__package__"}
        self._numbers: set[str] = set()  # names of literals and paths, on which operators have no effect

    def takes(self, node: ast.stmt) -> bool:
        """Whether a statement is executed again; to be asked once for each, in their order."""
        names = set(bound_names([node]))
        if not self._may_run(node):
            self._forget(names)
            self.open |= names
            return False
        self._learn(node, names)
        return True

    def _forget(self, names: set[str]) -> None:
        self._known -= names
        self._numbers -= names
        for name in names:
            self._imported.pop(name, None)

    def _learn(self, node: ast.stmt, names: set[str]) -> None:
        self._forget(names)
        self.open -= names
        self._known |= names
        for each in ast.walk(node) if not isinstance(node, _DEFINITIONS) else ():
            if isinstance(each, ast.Import):
                for alias in each.names:
                    top = alias.name.partition(".")[0]
                    self._imported[alias.asname or top] = top
            elif isinstance(each, ast.ImportFrom):
                for alias in each.names:
                    self._imported[alias.asname or alias.name] = (each.module or ".").partition(".")[0]
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is not None and self._is_operand(value):
            self._numbers |= names

    def _may_run(self, node: ast.stmt) -> bool:
        if isinstance(node, _DEFINITIONS):
            return not any(self._imported.get(self._root(each)) in _NOT_REPEATED for each in node.decorator_list)
        if isinstance(node, _REPEATED) or type(node).__name__ == "TypeAlias":
            return True
        if isinstance(node, ast.Assign):
            return all(map(self._is_target, node.targets)) and self._is_pure(node.value)
        if isinstance(node, ast.AnnAssign):
            return self._is_target(node.target) and (node.value is None or self._is_pure(node.value))
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Constant) or self._sets(node.value)
        if isinstance(node, ast.If):
            return not is_main_guard(node) and self._is_test(node.test) and self._may_all([*node.body, *node.orelse])
        if isinstance(node, ast.Try):
            kinds = [each.type for each in node.handlers if each.type is not None]
            bodies = [
                *node.body,
                *(part for each in node.handlers for part in each.body),
                *node.orelse,
                *node.finalbody,
            ]
            return all(map(self._is_test, kinds)) and self._may_all(bodies)
        return False

    def _may_all(self, body: list[ast.stmt]) -> bool:
        """Names that one statement of a block binds are not known to the next: imports and literals need none."""
        return all(map(self._may_run, body))

    def _is_target(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Attribute):
            chain = dotted_words(node)
            return bool(chain) and chain[0] in self._known and self._imported.get(chain[0]) not in _NOT_REPEATED
        return isinstance(node, ast.Name) or (isinstance(node, ast.Tuple) and all(map(self._is_target, node.elts)))

    def _is_pure(self, node: ast.expr | None) -> bool:
        """Whether making a value has no effect."""
        if node is None or isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            return node.id in self._known
        if isinstance(node, ast.Attribute):
            return self._is_pure(node.value)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return all(map(self._is_pure, node.elts))
        if isinstance(node, ast.Dict):
            return all(map(self._is_pure, [*node.keys, *node.values]))
        if isinstance(node, ast.Lambda):
            return all(map(self._is_pure, [*node.args.defaults, *node.args.kw_defaults]))
        if isinstance(node, ast.Call):
            return self._is_pure_call(node)
        return self._is_operand(node)

    def _is_operand(self, node: ast.expr) -> bool:
        """Whether a value is a number, a text or a path, made by operators at most."""
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            return node.id in self._numbers
        if isinstance(node, ast.UnaryOp):
            return self._is_operand(node.operand)
        if isinstance(node, ast.BinOp):
            return self._is_operand(node.left) and self._is_operand(node.right)
        if isinstance(node, ast.Attribute):
            return self._is_operand(node.value)
        if not isinstance(node, ast.Call) or not self._is_pure_call(node):
            return False
        word = node.func.attr if isinstance(node.func, ast.Attribute) else (dotted_words(node.func) or [""])[-1]
        return word in _PATHS

    def _is_pure_call(self, node: ast.Call) -> bool:
        function = node.func
        chain = dotted_words(function)
        if chain:
            words = {chain[-1], ".".join(chain[-2:])}
            is_callable = chain[0] in self._imported or chain[0] in self._numbers
            is_cache = self._imported.get(chain[0]) == "cachec" and chain[-1] == "Cache"
            is_pure = bool(words & PURE_CALLS) or chain[-1].startswith("DEFINE_")  # of absl: it gives the flag's holder
            may_call = chain[-1] == "stage" or is_cache or (is_callable and is_pure)
        elif isinstance(function, ast.Attribute):  # Path(...).resolve()
            may_call = function.attr in PURE_CALLS and self._is_operand(function.value)
        else:  # cache.stage(tools=...)(function), partial(jit, ...)(function)
            may_call = isinstance(function, ast.Call) and self._is_pure_call(function)
        return may_call and self._has_pure_arguments(node)

    def _sets(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call) or not self._has_pure_arguments(node):
            return False
        chain = dotted_words(node.func)
        if not chain:
            return self._sets(node.func)
        if chain[0] not in self._known or self._imported.get(chain[0]) in _NOT_REPEATED:
            return False
        if not SETTING.fullmatch(".".join(chain)):
            return False
        return chain[-1] != "basicConfig" or not _OPENING & {each.arg for each in node.keywords}

    def _root(self, node: ast.expr) -> str:
        """The name that an expression such as ``a.b(c)`` starts from; empty where it starts from none."""
        while isinstance(node, ast.Attribute | ast.Call):
            node = node.func if isinstance(node, ast.Call) else node.value
        return node.id if isinstance(node, ast.Name) else ""

    def _has_pure_arguments(self, node: ast.Call) -> bool:
        return all(map(self._is_pure, [*node.args, *(each.value for each in node.keywords)]))

    def _is_test(self, node: ast.expr) -> bool:
        kinds = (ast.Name, ast.Attribute, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Tuple, ast.Subscript)
        ignored = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
        return all(isinstance(each, kinds + ignored) for each in ast.walk(node))


def select(body: list[ast.stmt]) -> tuple[list[ast.stmt], set[str]]:
    """The statements that are executed again, and the names that are left open."""
    selection = Selection(bound_names(body))
    return [node for node in body if selection.takes(node)], selection.open


def bound_names(body: Iterable[ast.AST]) -> Iterator[str]:
    """The names that statements bind in their own scope, also those that they delete."""
    stack = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, _DEFINITIONS):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for each in node.names:
                yield each.asname or (each.name.partition(".")[0] if isinstance(node, ast.Import) else each.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        if not isinstance(node, _FUNCTIONS + _DEFINITIONS):
            stack.extend(ast.iter_child_nodes(node))


def read_names(node: ast.AST, functions: dict[str, ast.AST]) -> set[str]:
    """The global names that executing a statement may read, also in functions of the script that it may call.

    functions: the definitions of the script, by name.
    """
    found: set[str] = set()
    stack: list[tuple[ast.AST, bool]] = [(node, False)]
    while stack:
        each, is_body = stack.pop()
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and each.id not in found:
            found.add(each.id)
            if each.id in functions:
                stack.append((functions[each.id], True))
        children = list(ast.iter_child_nodes(each))
        if isinstance(each, _FUNCTIONS) and not is_body:
            bodies = {id(part) for part in ([each.body] if isinstance(each, ast.Lambda) else each.body)}
            children = [child for child in children if id(child) not in bodies]
        # A class that a statement names may be made into an instance: its methods may run.
        stack.extend((child, is_body) for child in children)
    return found


def dotted_words(node: ast.expr) -> list[str]:
    """The words of ``a.b.c``; none for anything else."""
    words: list[str] = []
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    return [*reversed([*words, node.id])] if isinstance(node, ast.Name) else []


def is_main_guard(node: ast.AST) -> TypeGuard[ast.If]:
    """Whether a statement is ``if __name__ == "__main__":``."""
    test = node.test if isinstance(node, ast.If) else None
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return False
    sides = [test.left, test.comparators[0]]
    names = [each.id for each in sides if isinstance(each, ast.Name)]
    values = [each.value for each in sides if isinstance(each, ast.Constant)]
    return names == ["__name__"] and values == ["__main__"]
