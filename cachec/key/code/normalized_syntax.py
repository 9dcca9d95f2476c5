"""Normalized syntax: bytes of a piece of Python source that are equal on every supported Python.

Left out: comments, formatting, positions, docstrings, type comments, the ``u`` prefix of strings, and every optional
field that is empty (so a field that a later Python adds changes nothing until it is used). Kept: names, annotations,
the order of everything. ``ast.dump`` is not used because its output differs between versions.

Format: a node is ``(Class field value ...)``, a list ``[items]``, a string ``s<length>:<text>``, an absent list item
``~``; a constant names its type, and floats are written in hexadecimal, so ``1``, ``1.0``, ``True``, ``-0.0`` and NaN
all differ. Strings carry their length, so no two trees have the same bytes.

Only the standard library is imported here: the tests run this file alone under other interpreters.
"""

from __future__ import annotations

import ast
import os
import threading
from collections.abc import Callable, Container, Iterable
from typing import Any

#: Version of the format above. A change of any byte that ``normalise`` writes must change it.
FORMAT = "syntax 1"

_SKIPPED_FIELDS = frozenset({"ctx", "type_comment", "type_ignores", "kind"})
_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
_Item = object  # an AST node, a list of nodes, or text that is ready to be written


def normalise(node: ast.AST | Iterable[ast.AST], dropped: Container[int] = ()) -> bytes:
    """The bytes of one node or of a list of nodes. ``dropped`` holds the ``id`` of nodes to leave out of lists.

    Raises TypeError for a constant that no source text can spell.
    """
    out: list[str] = []
    # An explicit stack: a sum of a thousand terms is a tree a thousand levels deep. The last pushed is written first.
    stack: list[Any] = [node if isinstance(node, ast.AST) else list(node)]
    push, pop, write = stack.append, stack.pop, out.append
    while stack:
        item = pop()
        kind = type(item)
        if kind is str:
            write(item)
        elif kind is ast.Name:
            write(f"(Name id s{len(item.id)}:{item.id})")
        elif kind is list:
            write("[")
            push("]")
            for one in reversed(item):
                if id(one) not in dropped:
                    push("~" if one is None else one if isinstance(one, ast.AST) else _text(one))
        elif kind in _SPECIAL:
            stack.extend(reversed(_SPECIAL[kind](item)))
        else:
            name, fields = _PLANS[kind]
            write(name)
            push(")")
            for field, before in fields:
                value = getattr(item, field, None)
                if value is None or value == [] or (field == "level" and value == 0):
                    continue
                if field == "body" and kind in _DOCUMENTED:
                    value = without_docstring(value)
                    if not value:
                        continue
                elif field == "decorator_list" and all(id(one) in dropped for one in value):
                    continue  # as if there were none
                # What is neither syntax nor a list is a name, or an int: conversion, simple, is_async; or a singleton.
                push(value if isinstance(value, (ast.AST, list)) else _constant(value))
                push(before)
    return "".join(out).encode("utf-8", "surrogatepass")


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a body without a leading docstring."""
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return body[1:] if isinstance(body[0].value.value, str) else body
    return body


def documentation(value: object) -> bytes:
    """Documentation, as it is hashed."""
    return repr(value).encode("utf-8", "surrogatepass")


def docstrings(node: ast.AST) -> list[str]:
    """Every docstring in a piece of syntax, in its order."""
    documented = [each for each in ast.walk(node) if isinstance(each, _DOCUMENTED)]
    return [text for text in (ast.get_docstring(each, clean=False) for each in documented) if text is not None]


def _text(text: str) -> str:
    return f"s{len(text)}:{text}"


def _constant(value: object) -> str:
    kind = type(value)
    if kind is str:
        return _text(value)  # type: ignore[arg-type]
    if value is None or value is Ellipsis:
        return "None" if value is None else "..."
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return f"i{value:x};"  # hexadecimal: decimal text of a large int is refused by Python (and slow)
    if kind is float:
        return f"f{value.hex()};"  # type: ignore[attr-defined]
    if kind is complex:
        return f"c{value.real.hex()},{value.imag.hex()};"  # type: ignore[attr-defined]
    if kind is bytes:
        return f"b{len(value)}:{value.hex()}"  # type: ignore[arg-type,attr-defined]
    raise TypeError(f"a constant of type {kind.__name__} has no normal form")


def _constant_node(node: ast.AST) -> list[_Item]:
    return ["(Constant " + _constant(node.value) + ")"]  # type: ignore[attr-defined]


def _joined_node(node: ast.AST) -> list[_Item]:
    # Pythons differ in how they cut the literal text of an f-string into constants; only its sum means something.
    items: list[_Item] = ["(JoinedStr"]
    text = ""
    for value in node.values:  # type: ignore[attr-defined]
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            text += value.value
            continue
        if text:
            items.append(" " + _text(text))
            text = ""
        items.append(" ")
        items.append(value)
    if text:
        items.append(" " + _text(text))
    items.append(")")
    return items


def _formatted_node(node: ast.AST) -> list[_Item]:
    items: list[_Item] = [f"(FormattedValue {node.conversion} "]  # type: ignore[attr-defined]
    items.append(node.value)  # type: ignore[attr-defined]
    spec = node.format_spec  # type: ignore[attr-defined]
    if spec is not None and spec.values:  # `{x:}` means `{x}`
        items += [" ", spec]
    items.append(")")
    return items


_SPECIAL: dict[type, Callable[[ast.AST], list[_Item]]] = {
    ast.Constant: _constant_node,
    ast.JoinedStr: _joined_node,
    ast.FormattedValue: _formatted_node,
}

#: For each class of nodes: its opening, and its fields from the last to the first, each with what stands before it.
_PLANS = {
    cls: ("(" + cls.__name__, [(each, f" {each} ") for each in reversed(cls._fields) if each not in _SKIPPED_FIELDS])
    for cls in vars(ast).values()
    if isinstance(cls, type) and issubclass(cls, ast.AST)
}


# --- parsing where other threads parse too

#: How often a text is parsed before an error that is not of its own is raised.
_TRIES = 20

#: Nobody waits for the others longer than this: what the collector runs meanwhile may wait for anything.
_SECONDS = 5.0


class _Turn:
    """Whose turn it is. A thread may parse while it parses: the collector may run code that calls stages."""

    lock = threading.RLock()

    @classmethod
    def renew(cls) -> None:
        """A new process: the thread that had the turn may not be in it."""
        cls.lock = threading.RLock()


os.register_at_fork(after_in_child=_Turn.renew)


def parse(text: str | bytes, path: str = "<unknown>", *, mode: str = "exec") -> Any:
    """The tree of a text, as ``ast.parse`` makes it, which raises SyntaxError and ValueError.

    Older Pythons (3.11.7) have one counter for all threads of how deep a tree is (gh-106905): where one is interrupted
    while its tree is made, by a callback of the garbage collector such as JAX installs, and another parses meanwhile,
    the first ends with a SystemError, of which the text is no cause. So one thread of ours parses at a time, and again
    where a thread of somebody else's came between.
    """
    for _ in range(_TRIES - 1):
        try:
            return _parse_now(text, path, mode)
        except SystemError:
            continue
    return _parse_now(text, path, mode)


def _parse_now(text: str | bytes, path: str, mode: str) -> Any:
    lock = _Turn.lock
    has_turn = lock.acquire(timeout=_SECONDS)
    try:
        return ast.parse(text, path, mode)
    finally:
        if has_turn:
            lock.release()
