"""The value of a module-level expression with the present values of its names, where it can be computed without running
anything."""

from __future__ import annotations

import ast
import builtins
import math
import operator
import re
from collections.abc import Callable, Container, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, Final

from cachec.key.code.scopes import dotted_name

#: Numbers beyond this, and containers with more items, are not worked out.
_LIMIT = 1 << 64
_MANY = 10_000

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
_SHIFTS: dict[type, Callable[[Any, Any], Any]] = {
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Pow: operator.pow,
}
#: Built-in functions that make of plain values what depends on nothing else.
_CALLED = frozenset({"dict", "list", "tuple", "set", "frozenset", "len", "int", "float", "str", "bool", "abs"})


#: Stands for a value that no literal tells.
UNKNOWN: Final = object()


class NotConstant(Exception):
    """What an expression comes to can't be told."""


def fold(node: ast.expr, namespace: Mapping[str, Any]) -> Any:
    """The value of an expression; names are looked up in ``namespace`` and in modules. Raises NotConstant."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return _lookup_name(namespace, node.id)
        case ast.Attribute():
            holder = fold(node.value, namespace)
            if isinstance(holder, ModuleType):
                return _lookup_name(vars(holder), node.attr)
        case ast.UnaryOp():
            return _worked_out(_UNARY[type(node.op)], _number(fold(node.operand, namespace)))
        case ast.BinOp() if type(node.op) in _BINARY or type(node.op) in _SHIFTS:
            first, right = (_number(fold(each, namespace)) for each in (node.left, node.right))
            if type(node.op) in _SHIFTS and not (isinstance(right, int) and 0 <= right <= 64):
                raise NotConstant
            return _worked_out((_BINARY | _SHIFTS)[type(node.op)], first, right)
        case ast.Tuple() | ast.List() | ast.Set():
            items = [fold(each, namespace) for each in node.elts]
            kind: Callable[[Any], Any] = {ast.Tuple: tuple, ast.List: list, ast.Set: set}[type(node)]
            return _worked_out(kind, items)
        case ast.Dict():
            pairs = [
                (fold(key, namespace), fold(each, namespace))
                for key, each in zip(node.keys, node.values, strict=True)
                if key is not None
            ]
            if len(pairs) == len(node.keys):
                return _worked_out(dict, pairs)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLED and name not in namespace:
            given = [fold(each, namespace) for each in node.args]
            named = {each.arg: fold(each.value, namespace) for each in node.keywords if each.arg is not None}
            if len(named) == len(node.keywords) and all(_is_plain(each) for each in (*given, *named.values())):
                return _worked_out(lambda *_: getattr(builtins, name)(*given, **named))
        case ast.Call(func=ast.Attribute() as named) if not node.keywords:
            function, given = fold(named, namespace), [fold(each, namespace) for each in node.args]
            if (function is re.compile or getattr(function, "__self__", None) is math) and all(map(_is_plain, given)):
                return _worked_out(function, *given)
        case _:
            pass
    raise NotConstant


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal to the last bit and type, or hold the same objects."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in _PLAIN:
        return repr(one) == repr(other)
    if kind in (list, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if kind is dict:
        return len(one) == len(other) and all(map(same, one, other)) and all(map(same, one.values(), other.values()))
    if kind is re.Pattern:
        return bool(one == other)
    return kind in (set, frozenset) and sorted(map(repr, one)) == sorted(map(repr, other)) and one == other


def _lookup_name(namespace: Mapping[str, Any], name: str) -> Any:
    try:
        return namespace[name]
    except KeyError:
        raise NotConstant from None


def _number(value: Any) -> Any:
    if type(value) not in {bool, int, float, complex} or (isinstance(value, int) and abs(value) > _LIMIT):
        raise NotConstant
    return value


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple, set, frozenset):
        return len(value) <= _MANY and all(map(_is_plain, value))
    if type(value) is dict:
        return len(value) <= _MANY and all(map(_is_plain, (*value, *value.values())))
    return type(value) in _PLAIN and not (type(value) is int and abs(value) > _LIMIT)


def _worked_out(function: Callable[..., Any], *given: Any) -> Any:
    try:
        return function(*given)
    except (ArithmeticError, TypeError, ValueError, re.error) as error:
        raise NotConstant from error


#: Modules whose functions make things that hold nothing of this process, where they are told plain values.
MAKERS = frozenset({"logging", "typing", "threading", "dataclasses", "functools", "cachec"})


def is_determined(
    statements: Sequence[ast.stmt], imports: Container[str], value: object, namespace: Mapping[str, Any]
) -> bool:
    """Whether the text alone says what importing the module binds a name to: definitions, literals and imports; or the
    defaults of a definition are what they come to now. imports: the names that come from outside of the project. held:
    what the module has."""
    return len(statements) == 1 and _is_statement_determined(statements[0], imports, value, namespace)


def _is_statement_determined(
    node: ast.stmt, imports: Container[str], value: object, namespace: Mapping[str, Any]
) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return _are_plain(node.decorator_list, imports) and _are_defaults_determined(node.args, value, namespace)
        case ast.ClassDef():
            attributes = vars(value) if isinstance(value, type) else {}
            return _are_plain(node.decorator_list, imports) and all(
                _is_statement_determined(
                    each, imports, attributes.get(getattr(each, "name", "")), {**namespace, **attributes}
                )
                for each in node.body
            )
        case ast.Assign() | ast.AnnAssign():
            return node.value is None or _is_literal(node.value) or _is_made(node.value, imports)
        case ast.Expr():
            return isinstance(node.value, ast.Constant)
        case ast.Try():
            # Which way an optional import went is looked at by itself.
            inner = [*node.body, *(each for handler in node.handlers for each in handler.body), *node.orelse]
            return all(_is_statement_determined(each, imports, None, namespace) for each in (*inner, *node.finalbody))
        case ast.Import() | ast.ImportFrom() | ast.Pass():
            return True
        case _:
            return False


def _are_defaults_determined(given: ast.arguments, value: object, namespace: Mapping[str, Any]) -> bool:
    """Whether defaults are literals, or ``value`` has what they come to."""
    named = {each.arg: default for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default}
    if all(map(_is_literal, (*given.defaults, *named.values()))):
        return True
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if not isinstance(function, FunctionType):
        return False
    try:
        return same(tuple(fold(each, namespace) for each in given.defaults), function.__defaults__ or ()) and same(
            {name: fold(each, namespace) for name, each in named.items()}, function.__kwdefaults__ or {}
        )
    except (NotConstant, RecursionError):
        return False


def _are_plain(decorators: Sequence[ast.expr], imports: Container[str]) -> bool:
    """Whether decorators are names, or told literals."""
    for each in decorators:
        if isinstance(each, ast.Call):
            given = [*each.args, *(keyword.value for keyword in each.keywords)]
            if not all(map(_is_literal, given)) or not dotted_name(each.func):
                return False
        elif not dotted_name(each):
            return False
    return True


def _is_made(node: ast.expr, imports: Container[str]) -> bool:
    """Whether a function of a library that keeps nothing is called with literals, or ``__name__``."""
    if not isinstance(node, ast.Call):
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    root = (dotted_name(node.func) or ("",))[0]
    is_local = (dotted_name(node.func) or ("",))[-1] == "local"  # whose attributes anybody sets
    return (
        root in imports
        and not is_local
        and all(_is_literal(each) or dotted_name(each) == ("__name__",) for each in given)
    )


def literal(node: ast.expr) -> Any:
    """The value of a literal; ``UNKNOWN`` for anything else."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return UNKNOWN


def _is_literal(node: ast.expr) -> bool:
    return literal(node) is not UNKNOWN
