"""A text with its large literals set aside: small enough for regular expressions that need to see what is around them.

Each string of hexadecimal digits and each list of numbers that is long becomes a marker, its number between two NULs,
and each trailer becomes nothing. A text that holds a NUL of its own is refused, so a marker means one literal only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from cachec_mlir.module_input import ModuleInput
from cachec_mlir.text.scanner import COMMENT, EDGE, STRING, Marks

#: Characters from which a literal is set aside.
_LONG = 64
_LIST = re.compile(COMMENT + rb"|" + STRING + rb"|" + EDGE + rb"dense\s*+<\s*+(?=\[)")
#: What lists of numbers are made of. Another character (a string's quote, say) makes it something else.
_NUMBERS = re.compile(rb"[0-9A-Za-z+\-.,()\[\]\s]*+")
MARKER = re.compile(rb"\0([0-9]++)\0")


class Literal(NamedTuple):
    """A literal that was set aside: ``[start, end)`` of the text.

    hexadecimal: a string of digits with its quotes, else a list with its outer brackets. digits_only: whether the
    string has only digits.
    """

    start: int
    end: int
    hexadecimal: bool
    digits_only: bool


class Skeleton:
    """A text without its literals and trailers. text: the rest, with markers. literals: by the number of the marker.

    trailers: where in ``text`` each was.
    """

    def __init__(self, module: ModuleInput, marks: Marks) -> None:
        """Raises CheckpointError for a text that holds a NUL."""
        self.module = module
        spans: list[tuple[int, int, Literal | None]] = [(each.start, each.end, None) for each in marks.trailers]
        spans += [
            (each.start, each.end, Literal(each.start, each.end, True, each.digits_only))
            for each in marks.constants
            if each.end - each.start >= _LONG
        ]
        self.literals: list[Literal] = []
        self.trailers: list[int] = []
        self._size = 0
        out: list[bytes] = []
        at = 0
        for start, end, literal in sorted(spans, key=lambda span: span[0]):
            self._copy(at, start, out)
            if literal is not None:
                self._set_aside(literal, out)
            else:
                self.trailers.append(self._size)
            at = end
        self._copy(at, module.size, out)
        self.text = b"".join(out)

    def whole(self, text: bytes) -> bytes:
        """``text`` with the literals in place of their markers."""
        return MARKER.sub(lambda match: self.raw(int(match[1])), text)

    def raw(self, number: int) -> bytes:
        """Return a literal as it is in the text."""
        literal = self.literals[number]
        return bytes(self.module.view()[literal.start : literal.end])

    def _copy(self, start: int, end: int, out: list[bytes]) -> None:
        """Text without strings of digits, its lists set aside."""
        for begin, stop in _lists(self.module, start, end):
            self._plain(start, begin, out)
            self._set_aside(Literal(begin, stop, False, False), out)
            start = stop
        self._plain(start, end, out)

    def _plain(self, start: int, end: int, out: list[bytes]) -> None:
        data = bytes(self.module.view()[start:end])
        zero = data.find(b"\0")
        if zero >= 0:
            raise self.module.error(start + zero, "text expected, found a NUL")
        out.append(data)
        self._size += len(data)

    def _set_aside(self, literal: Literal, out: list[bytes]) -> None:
        marker = b"\0%d\0" % len(self.literals)
        out.append(marker)
        self._size += len(marker)
        self.literals.append(literal)


def _lists(module: ModuleInput, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The long lists within ``[start, end)``, each with its outer brackets."""
    view = module.view()
    at = start
    while (match := _LIST.search(view, at, end)) is not None:
        at = match.end()
        if match[0][:1] != b"d":
            continue
        # No run of numbers holds what begins a list, so no byte is looked at twice.
        numbers = _NUMBERS.match(view, at, end)
        assert numbers is not None  # it may be empty
        close = numbers.end()
        if close - at >= _LONG and bytes(view[close : close + 1]) == b">":
            yield at, close
        at = close
