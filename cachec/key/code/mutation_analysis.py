"""What code may change, as far as its names show: cached properties that it may fill or test, and values that it may
change in place."""

from __future__ import annotations

import ast
import opcode
from collections.abc import Collection, Iterable, Iterator
from types import CodeType

from cachec.key.code.module_sources import WHOLE, SourceText, Span
from cachec.key.code.part_graph import span

#: Words of code that sees which attributes there are, or sets some by a computed name.
_WORDS = frozenset(
    {
        *("vars", "__dict__", "setattr", "__setattr__", "delattr", "__delattr__", "getmembers", "exec", "eval"),
        *("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "pickle", "dump", "dumps"),
    }
)

#: Methods of containers, arrays and generators of numbers that change them.
_CHANGING = frozenset(
    {
        *("append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem", "clear", "update"),
        *("add", "setdefault", "remove", "discard", "sort", "reverse", "rotate", "subtract", "move_to_end"),
        *("difference_update", "intersection_update", "symmetric_difference_update"),
        *("__setitem__", "__delitem__", "__iadd__", "__setattr__", "setattr", "next", "send", "set", "seed", "write"),
        *("fill", "put", "resize", "itemset", "setflags"),
    }
)
_STORES = "STORE_SUBSCR DELETE_SUBSCR STORE_ATTR DELETE_ATTR STORE_GLOBAL DELETE_GLOBAL STORE_SLICE"
_STORING = frozenset(opcode.opmap[name] for name in _STORES.split() if name in opcode.opmap)


def may_change(codes: Iterable[CodeType]) -> set[str]:
    """The names in those of some code objects that store items, attributes or globals, or call methods that do."""
    changing = (
        each for each in codes if not _CHANGING.isdisjoint(each.co_names) or _STORING.intersection(each.co_code[::2])
    )
    return {name for each in changing for name in (*each.co_names, *each.co_freevars)}


def may_tell(source: SourceText, spans: Collection[Span], names: Collection[str]) -> bool:
    """Whether what stands in these spans of a text may, by its words, for attributes of these names."""
    return any(_tells(node, names) for node in _within(source.tree, spans))


def _within(tree: ast.AST, spans: Collection[Span]) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute | ast.Constant | ast.JoinedStr):
            begin, end = span(node)
            if any(each == WHOLE or (each[0] <= begin and end <= each[1]) for each in spans):
                # On Python 3.11 what stands in an f-string does not say where.
                yield from ast.walk(node) if isinstance(node, ast.JoinedStr) else (node,)


def _tells(node: ast.AST, names: Collection[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _WORDS
    if isinstance(node, ast.Attribute):
        return node.attr in _WORDS or (node.attr in names and not isinstance(node.ctx, ast.Load))
    return isinstance(node, ast.Constant) and node.value in names and isinstance(node.value, str)
