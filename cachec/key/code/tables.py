"""The units of a source text: each function, class and the module itself with a digest and the names that it uses.

A table depends on nothing but the text, so it can be kept by the digest of a file's content, for processes that have
not parsed that file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from cachec.base.hashing import Hasher
from cachec.key.code import scopes, syntax
from cachec.key.code.modules import Source
from cachec.key.code.scopes import Chain

#: The unit that is the body of a module: what importing it runs.
MODULE = "<module>"


class UnitEntry(NamedTuple):
    """One unit. digest: of its normalised syntax (of all of this qualified name where there are more). names: what it
    takes from outside of itself, with the attributes taken from each."""

    digest: str
    names: tuple[Chain, ...]


def table(source: Source) -> dict[str, UnitEntry]:
    """The units of a text by qualified name, as ``co_qualname`` has them: ``f``, ``A``, ``A.m``, ``f.<locals>.g``,
    ``f.<locals>.<lambda>``, ``<module>``."""
    found: dict[str, list[ast.AST]] = {MODULE: [source.tree]}
    for qualname, node in _units(source.tree, ""):
        found.setdefault(qualname, []).append(node)
    return {qualname: _entry(source, nodes) for qualname, nodes in found.items()}


def _entry(source: Source, nodes: list[ast.AST]) -> UnitEntry:
    hasher = Hasher(syntax.FORMAT)
    names: dict[Chain, None] = {}
    for node in nodes:
        hasher.part("syntax", source.syntax(node))
        names.update(dict.fromkeys(source.uses(node).refs))
    return UnitEntry(hasher.digest(), tuple(names))


def _units(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield prefix + child.name, child
            yield from _units(child, f"{prefix}{child.name}.")
        elif isinstance(child, scopes.FUNCTIONS):
            name = "<lambda>" if isinstance(child, ast.Lambda) else child.name
            yield prefix + name, child
            yield from _units(child, f"{prefix}{name}.<locals>.")
        else:
            yield from _units(child, prefix)
