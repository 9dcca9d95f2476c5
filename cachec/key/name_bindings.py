"""Finds statements of a module that only bind one name: only code that uses the name depends on them.

1. ``def`` without decorators, whose defaults and annotations are plain: literals, and names that are surely bound.
2. ``class`` without decorators and keywords, whose body holds such functions, literals and annotations, with at most
   one base: ``ABC``, an exception of Python, or a class of the same module that has such a base itself and can't see
   its subclasses. Classes with a metaclass, ``__init_subclass__`` or decorators are none of these, nor enumerations,
   protocols and named tuples.
3. ``name = literal``.

Names with two underscores at both ends never: Python itself looks for those.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from cachec.key import script_statements

#: Names of Python that are bound in every version, and that annotations and defaults use.
_TYPES = frozenset(
    {"bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "memoryview", "object"}
    | {"range", "set", "slice", "str", "tuple", "type"}
)

#: Classes of Python of which a subclass may be made without an effect.
_BASES = frozenset(
    {"object", "Exception", "ArithmeticError", "AssertionError", "AttributeError", "ImportError", "IndexError"}
    | {"KeyError", "LookupError", "NameError", "NotImplementedError", "OSError", "RuntimeError", "StopIteration"}
    | {"TypeError", "ValueError", "UserWarning", "Warning"}
)

#: Decorators of methods, and what ``abc`` has.
_OF_METHODS = frozenset({"classmethod", "property", "staticmethod"})
_OF_ABC = ("ABC", "abstractmethod")

#: Methods that act on other classes than their own.
_HOOKS = frozenset({"__init_subclass__", "__subclasshook__"})

_LITERALS = (ast.Tuple, ast.List, ast.Set)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class NameBindings:
    """Judges the statements of one module, in their order. The bodies of its functions may have been removed."""

    def __init__(self, body: Sequence[ast.stmt]) -> None:
        rebound = set(script_statements.bound_names(body))
        has_star = any(isinstance(each, ast.alias) and each.name == "*" for node in body for each in ast.walk(node))
        self._has_texts = any(
            isinstance(node, ast.ImportFrom)
            and node.module == "__future__"
            and any(each.name == "annotations" for each in node.names)
            for node in body
        )
        #: Names that are surely bound, those of classes that have no part in making a subclass, and decorators.
        self._bound = set(_TYPES - rebound)
        self._classes = set() if has_star else set(_BASES - rebound)
        self._decorators = set() if has_star else set(_OF_METHODS - rebound)

    def bound_alone(self, node: ast.stmt) -> str:
        """The name that a statement does nothing but bind; empty where it may do more. To be asked once for each."""
        name = self._name(node)
        is_base = isinstance(node, ast.ClassDef) and self._is_base(node)
        for known in (self._bound, self._classes, self._decorators):
            known.difference_update(script_statements.bound_names([node]))
        self._bound |= _bound_surely(node)
        if is_base:
            self._classes |= _bound_surely(node)
        if isinstance(node, ast.ImportFrom) and node.module == "abc" and not node.level:
            for alias in node.names:
                if alias.name in _OF_ABC:
                    (self._classes if alias.name == "ABC" else self._decorators).add(alias.asname or alias.name)
        return "" if is_special(name) else name

    def _name(self, node: ast.stmt) -> str:
        if isinstance(node, _DEFINITIONS) and self._is_plain_function(node, ()):
            return node.name
        if isinstance(node, ast.ClassDef) and self._is_plain_class(node):
            return node.name
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and self._is_constant(node):
            return script_statements.dotted_words(_target(node))[0]
        return ""

    def _is_plain_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, decorators: Sequence[str]) -> bool:
        arguments = node.args
        listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        annotations = [node.returns, *(each.annotation for each in listed if each is not None)]
        return (
            all(isinstance(each, ast.Name) and each.id in decorators for each in node.decorator_list)
            and not getattr(node, "type_params", [])
            and all(map(self._is_plain, [*arguments.defaults, *arguments.kw_defaults]))
            and (self._has_texts or all(map(self._is_plain, annotations)))
        )

    def _is_base(self, node: ast.ClassDef) -> bool:
        if node.decorator_list or node.keywords or getattr(node, "type_params", []):
            return False
        if len(node.bases) > 1 or not all(
            isinstance(each, ast.Name) and each.id in self._classes for each in node.bases
        ):
            return False
        return _HOOKS.isdisjoint(script_statements.bound_names(node.body))

    def _is_plain_class(self, node: ast.ClassDef) -> bool:
        decorators = tuple(self._decorators - set(script_statements.bound_names(node.body)))
        return self._is_base(node) and all(self._is_plain_member(each, decorators) for each in node.body)

    def _is_plain_member(self, node: ast.stmt, decorators: Sequence[str]) -> bool:
        if isinstance(node, _DEFINITIONS):
            return self._is_plain_function(node, decorators)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            return self._is_constant(node) and not is_special(script_statements.dotted_words(_target(node))[0])
        return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))

    def _is_constant(self, node: ast.Assign | ast.AnnAssign) -> bool:
        """``name = literal``, or ``name: annotation``."""
        if isinstance(node, ast.AnnAssign) and not (self._has_texts or self._is_plain(node.annotation)):
            return False
        is_one = isinstance(node, ast.AnnAssign) or len(node.targets) == 1
        return is_one and isinstance(_target(node), ast.Name) and (node.value is None or _is_literal(node.value))

    def _is_plain(self, node: ast.expr | None) -> bool:
        return node is None or _is_literal(node) or (isinstance(node, ast.Name) and node.id in self._bound)


def is_special(name: str) -> bool:
    """Whether Python itself looks for a name."""
    return name.startswith("__") and name.endswith("__")


def _target(node: ast.Assign | ast.AnnAssign) -> ast.expr:
    return node.targets[0] if isinstance(node, ast.Assign) else node.target


def _is_literal(node: ast.expr) -> bool:
    """Whether a value is written out: making it can't fail."""
    if isinstance(node, _LITERALS):
        return all(map(_is_item if isinstance(node, ast.Set) else _is_literal, node.elts))
    if isinstance(node, ast.Dict):
        return all(map(_is_item, node.keys)) and all(map(_is_literal, node.values))
    return _is_item(node)


def _is_item(node: ast.expr | None) -> bool:
    """Of a set, or a key: it must have a hash."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return isinstance(node.operand, ast.Constant) and isinstance(node.operand.value, int | float)
    return isinstance(node, ast.Constant)


def _bound_surely(node: ast.stmt) -> set[str]:
    """The names that are bound after a statement, unless it raised."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef, *_DEFINITIONS)):
        return set(script_statements.bound_names([node]))
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {each.id for each in targets if isinstance(each, ast.Name)}
    return set()
