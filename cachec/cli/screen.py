"""What the commands print for a person: tables and texts that fit the terminal.

Nothing is cut, and no word is broken: what is copied from a terminal, such as a digest or a path, is whole. So a line
is longer than the terminal only where one word is, or a command to be pasted. Where stdout is no terminal, and nobody
says how wide it is (COLUMNS), nothing is wrapped at all: a program may read it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

import click

from cachec.base.display_text import clean, to_type

#: Columns below which nothing is laid out for a terminal: each line would be one word.
_NARROWEST = 20
#: The assumed width of an unknown terminal, for texts that are cut to one.
_USUAL = 80
#: Columns of a text that is cut to fit.
_LEAST = 4
#: How far what goes on below a row is indented.
_INDENT = 4
_GAP = "  "


def width() -> int | None:
    """Return the columns of the terminal; None if stdout is not a terminal and COLUMNS is not set."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return None
    import shutil  # slow to import, and not needed where a program reads it

    return max(shutil.get_terminal_size().columns, _NARROWEST)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    tells: str = "",
    detail: str = "",
) -> None:
    """Print rows under a header.

    right: columns of numbers. tells: the column that tells rows apart, by default the first; where its cell is too long
    for the terminal, the rest of its row is below. detail: the last column, if it holds long texts: one that does not
    fit beside its row, or has several lines, goes below it.
    """
    lines = [[clean(cell) for cell in row] for row in rows]
    details = [cell.split("\n") for *_, cell in rows] if detail else []
    if detail:
        lines = [line[:-1] for line in lines]
        columns = columns[:-1]
    grid = _Grid(columns, lines, right, columns.index(tells) if tells else 0, width())
    printed = [_bold(grid.header(detail))]
    for number, line in enumerate(lines):
        details_lines = [clean(each) for each in details[number] if each] if detail else []
        is_inline = len(details_lines) == 1 and grid.fits(line, details_lines[0])
        printed += grid.row(line, details_lines[0] if is_inline else "")
        if not is_inline:
            printed += [each for text in details_lines for each in wrap_text(text, grid.limit, _INDENT)]
    click.echo("\n".join(printed))


class _Grid:
    """How wide each column of a table is, and where a row goes on below.

    limit: columns of the terminal, None for any number.
    """

    def __init__(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], tells: int, limit: int | None
    ) -> None:
        self.limit = limit
        self._columns = columns
        self._is_right = [name in right for name in columns]
        self._tells = tells
        self._widths = [max(map(cell_width, column)) for column in zip(columns, *rows, strict=True)]
        self._is_stacked = False
        over = 0 if limit is None else self._total - limit
        if over > 0:
            available = self._widths[tells] - over
            fitting = [size for row in rows if (size := cell_width(row[tells])) <= available]
            self._is_stacked = available < cell_width(columns[tells])
            self._widths[tells] = max([cell_width(columns[tells]), *fitting])

    def header(self, last: str) -> str:
        """The names of the columns, as far as the rows are below them. last: as in ``row``."""
        if self._is_stacked:
            return _GAP.join(self._columns[: self._tells + 1])
        return self.line(self._columns, last if self.fits(self._columns, last) else "")

    @property
    def _total(self) -> int:
        return sum(self._widths) + len(_GAP) * (len(self._widths) - 1)

    def fits(self, row: Sequence[str], text: str) -> bool:
        """Whether a text fits in the line of a row."""
        if self.limit is None:
            return True
        return not self._is_long(row) and self._total + len(_GAP) + cell_width(text) <= self.limit

    def _is_long(self, row: Sequence[str]) -> bool:
        return self._is_stacked or cell_width(row[self._tells]) > self._widths[self._tells]

    def row(self, row: Sequence[str], last: str) -> Iterator[str]:
        """Return the lines of a row. last: the text of its last column."""
        if not self._is_long(row):
            yield self.line(row, last=last)
            return
        place = self._tells + 1
        yield self.line([*row[:place], *[""] * (len(row) - place)])
        rest = row[place:]
        if self._is_stacked and any(rest):
            named = [f"{name} {cell}" for name, cell in zip(self._columns[place:], rest, strict=True) if cell]
            yield from wrap_text(", ".join(named), self.limit, _INDENT)
        elif any(rest):
            yield self.line([*[""] * place, *rest])

    def line(self, cells: Sequence[str], last: str = "") -> str:
        """One line of cells under one another; of a table that is stacked, one after another."""
        laid = []
        for cell, size, is_right in zip(cells, self._widths, self._is_right, strict=True):
            space = " " * (size - cell_width(cell))
            laid.append(space + cell if is_right else cell + space)
        if self._is_stacked:
            laid = [cell for cell in cells if cell]
        return _GAP.join([*laid, last]).rstrip()


def print_wrapped(text: str, indent: int) -> None:
    """Print a text, indented; a long one goes on below its beginning."""
    text = clean(text)
    for line in wrap_text(text, width(), indent, hanging=2):
        click.echo(line)


def print_command(command: str, indent: int) -> None:
    """Print a command of cachec that can be typed, indented; on one line however long, so that it can be pasted."""
    click.echo(clean(" " * indent + to_type(command)))


def wrap_text(text: str, limit: int | None, indent: int, *, hanging: int = 0) -> Iterator[str]:
    """The lines of a text, indented, broken between words alone. hanging: how much further all but the first are."""
    line, size, space = " " * indent, indent, ""
    for word in text.rstrip().split(" "):
        wide = cell_width(word)
        if limit is not None and space and size + 1 + wide > limit:
            yield line.rstrip()
            line, size, space = " " * (indent + hanging), indent + hanging, ""
            if not word:
                continue
        line, size = line + space + word, size + len(space) + wide
        space = " "
    yield line.rstrip()


def cut(text: str, indent: int, columns: int | None = None) -> str:
    """The beginning of a text that fits on the rest of a line after ``indent`` columns, for what is shown in short.

    columns: of the terminal, by default that of stdout.
    """
    available = max((columns or width() or _USUAL) - indent, _LEAST)
    if cell_width(text) <= available:
        return text
    while cell_width(text) >= available:
        text = text[: min(available, len(text) - 1)]
    return text.rstrip() + "…"


def cell_width(cell: str) -> int:
    """Columns of a terminal that a printable text takes: below U+0300, where combining marks begin, one a character."""
    if cell.isascii() or max(cell) < "\u0300":
        return len(cell)
    from rich.cells import cell_len  # takes longer to import than most tables to print

    return cell_len(cell)


def _bold(line: str) -> str:
    is_plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return line if is_plain else click.style(line, bold=True)
