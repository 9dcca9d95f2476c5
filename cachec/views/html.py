"""HTML in which whatever comes from elsewhere is text: names of stages, paths and details may hold anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from cachec.errors import printable


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | Markup


def text(value: object) -> Markup:
    """A value as text: nothing in it is markup, a control character, or turns the direction of what follows."""
    return value if isinstance(value, Markup) else Markup(escape(printable(str(value))))


def element(tag: str, *content: Content, **attributes: object) -> Markup:
    """``element("td", 5, class_="number")``; an attribute of None or False is left out, one of True is empty."""
    return Markup(f"<{tag}{_attributes(attributes)}>{''.join(map(text, content))}</{tag}>")


def void(tag: str, **attributes: object) -> Markup:
    """An element that has no content and no end, or of SVG one that is closed at once."""
    return Markup(f"<{tag}{_attributes(attributes)}/>")


def join_markup(parts: Iterable[Content]) -> Markup:
    """Several pieces as one."""
    return Markup("".join(map(text, parts)))


def _attributes(attributes: dict[str, object]) -> str:
    written = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        written.append(f' {name}="{"" if value is True else escape(printable(str(value)))}"')
    return "".join(written)


class Cell:
    """A cell of a table. sort: what the column is sorted by, where that is a number."""

    __slots__ = ("content", "sort")

    def __init__(self, content: Content, sort: float | None = None) -> None:
        self.content = content
        self.sort = sort

    def html(self, name: str) -> str:
        """``<td>``, of a first column ``<th>``."""
        tag = "td" if name == "td" else 'th scope="row"'
        if self.sort is None:
            return f"<{tag}>{text(self.content)}</{name}>"
        return f'<{tag} data-sort="{self.sort:.9g}" class="number">{text(self.content)}</{name}>'


def table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, whole: int = 0, most: int = 250_000
) -> Markup:
    """Return a table with names of rows in its first column, and as many rows as fit in ``most`` bytes of markup.

    whole: how many rows there are, where not all are given; the caption says it. With scripts it may be sorted and
    filtered. It lies in a region that takes the focus, so that a narrow window can scroll it by keyboard.
    """
    number = ' class="number"'
    numeric = [cell.sort is not None for cell in rows[0]] if rows else [False] * len(columns)
    head = "".join(
        f'<th scope="col"{number if is_number else ""}>{text(column)}</th>'
        for column, is_number in zip(columns, numeric, strict=True)
    )
    body: list[str] = []
    for row in rows:
        body.append("<tr>" + "".join(cell.html("td" if at else "th") for at, cell in enumerate(row)) + "</tr>")
        most -= len(body[-1].encode())
        if most < 0:
            body.pop()
            break
    whole = max(whole, len(rows))
    name = caption if len(body) == whole else f"{caption}: {len(body):,} of {whole:,}"
    lines = "\n".join(body)
    whole_table = (
        f"<table><caption>{text(name)}</caption><thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody></table>"
    )
    return element(
        "div", Markup(whole_table), class_="table", role="region", tabindex="0", aria_label=name, data_many=True
    )
