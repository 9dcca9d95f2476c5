"""The regions of MLIR text: the function and module of an operation, and whether a module's symbol can be used in
it."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from typing import NamedTuple

from cachec_mlir.text.scanner import STRING

# Comments and strings are passed over; the names of operations in generic notation are strings.
_TOKEN = re.compile(
    rb'//[^\n]*+|"(?:builtin\.module|func\.func|util\.func)"|"(?:[^"\\\n]++|\\[^\n])*+"'
    rb"|(?<![A-Za-z0-9_$.%@^#!-])(?:(?:builtin\.)?module|func\.func|util\.func)(?![A-Za-z0-9_$.])|[{}()]"
)
_GENERIC = frozenset({b'"builtin.module"', b'"func.func"', b'"util.func"'})
_SYMBOL = re.compile(rb'[^@{}()"]{0,256}+@([A-Za-z_][A-Za-z0-9_$.\-]*+|"(?:[^"\\\n]++|\\[^\n])*+")')
_INSIDE = rb'(?:[^{}"]++|' + STRING
_PROPERTIES = re.compile(rb"\s*+\(\s*+\)\s*+<?+\{(" + _INSIDE + rb"|\{" + _INSIDE + rb")*+\})*+)\}")
_SYMBOL_NAME = re.compile(STRING + rb"|(?<![A-Za-z0-9_$.])sym_name\s*+=\s*+(" + STRING + rb")")
_ATTRIBUTES = re.compile(rb"(?:\battributes|=|<)\s*\Z")
_FIRST = re.compile(rb'^[ \t]*+(?=[a-z_]|")', re.MULTILINE)
#: The number of characters before a brace that are read.
_NEAR = 32

MODULE, FUNCTION, OTHER = "module", "function", "other"


class TextPlace(NamedTuple):
    """Where an offset is. function: its name, empty outside of one. direct: whether it is in the body of a function
    itself, in no other region, and only modules are around that. insert: where a symbol of that module can be put.
    """

    function: str
    direct: bool
    insert: int


class _Region(NamedTuple):
    """A region that was opened. insert: behind the brace of the module around it, -1 for none."""

    kind: str
    function: str
    only_modules: bool
    insert: int
    parent: int


class Structure:
    """Regions of a text. This is not a parser: braces of an unknown operation may be a region or attributes."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._regions = [_Region(MODULE, "", True, -1, 0)]
        self._starts: list[int] = [0]
        self._within: list[int] = [0]
        self._read()

    def place(self, offset: int) -> TextPlace:
        """Where ``offset`` is."""
        region = self._regions[self._number(offset)]
        direct = region.kind == FUNCTION and self._regions[region.parent].only_modules
        return TextPlace(region.function, direct, region.insert if region.insert >= 0 else self._top)

    @cached_property
    def _top(self) -> int:
        """The first operation of a text without a module: behind aliases, which begin with # or !."""
        for match in _FIRST.finditer(self._text):
            if self._number(match.start()) == 0:
                return match.end()
        return 0

    def _number(self, offset: int) -> int:
        return self._within[bisect_right(self._starts, offset) - 1]

    def _read(self) -> None:
        text = self._text
        at = 0
        # The function or module whose body is to come: kind, name, whether generic, depth of parentheses.
        pending: tuple[str, str, bool] | None = None
        depth = 0
        for match in _TOKEN.finditer(text):
            token = match[0]
            first = token[0]
            if first == 0x28:  # (
                depth += 1
            elif first == 0x29:  # )
                depth -= 1
            elif first == 0x7B:  # {
                kind, name = OTHER, ""
                before = bytes(text[max(0, match.start() - _NEAR) : match.start()])
                if pending is not None and not _ATTRIBUTES.search(before):
                    generic = pending[2]
                    if before.rstrip().endswith(b"(") if generic else depth == 0:
                        kind, name, pending = pending[0], pending[1], None
                        depth = 0
                around = self._regions[at]
                only_modules = around.only_modules and kind == MODULE
                insert = match.end() if kind == MODULE else around.insert
                function = name if kind == FUNCTION else around.function
                self._regions.append(_Region(kind, function, only_modules, insert, at))
                at = len(self._regions) - 1
                self._mark(match.end(), at)
            elif first == 0x7D:  # }
                at = self._regions[at].parent
                self._mark(match.end(), at)
            elif first != 0x2F and (first != 0x22 or token in _GENERIC):
                pending, depth = _header(text, match, generic=first == 0x22), 0

    def _mark(self, offset: int, region: int) -> None:
        self._starts.append(offset)
        self._within.append(region)


def _header(text: bytes, match: re.Match[bytes], *, generic: bool) -> tuple[str, str, bool] | None:
    kind = MODULE if b"module" in match[0] else FUNCTION
    if generic:
        inside = _PROPERTIES.match(text, match.end())
        names = [] if inside is None else [each[1] for each in _SYMBOL_NAME.finditer(inside[1]) if each[1] is not None]
        name = names[0] if names else None
    else:
        symbol = _SYMBOL.match(text, match.end())
        name = None if symbol is None else symbol[1]
    if name is None:
        return None if kind == FUNCTION else (kind, "", generic)
    return kind, name.strip(b'"').decode("utf-8", "replace"), generic
