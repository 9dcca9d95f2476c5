"""Write docs/explanation/architecture.svg, the picture of a call, from the tables below.

python scripts/diagram.py           write the picture
python scripts/diagram.py --check   exit with 1 if the picture is not what would be written
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "explanation" / "architecture.svg"

#: Pixels of a cell of the grid, of the gaps between cells, and of the border.
WIDTH, HEIGHT, GAP_X, GAP_Y, BORDER = 200, 62, 50, 46, 20


class Box(NamedTuple):
    """A box. column, row: its cell. text: its second line. color: its background."""

    name: str
    column: int
    row: int
    title: str
    text: str
    color: str


class Arrow(NamedTuple):
    """An arrow between neighbours, with a label."""

    start: str
    end: str
    word: str = ""


USE, STEP, STORE = "#dbe9ff", "#eef2e6", "#fdeed3"
BOXES = (
    Box("stage", 0, 0, "@cache.stage", "a Python function", USE),
    Box("exec", 1, 0, "cachec exec", "a command line", USE),
    Box("memo", 2, 0, "memo", "the command's last key", STORE),
    Box("key", 0, 1, "key", "what is known before a run", STEP),
    Box("lookup", 1, 1, "lookup", "is each read as it was?", STEP),
    Box("result", 2, 1, "result", "decoded, or files restored", USE),
    Box("lock", 0, 2, "lock", "one process for a key", STEP),
    Box("remotes", 1, 2, "remotes", "another machine's entry", STORE),
    Box("run", 0, 3, "run", "recorded, or traced", STEP),
    Box("again", 1, 3, "inputs again", "did one change?", STEP),
    Box("publish", 2, 3, "publish", "files, then one row", STEP),
    Box("store", 2, 2, "store", "index, objects, log", STORE),
)
ARROWS = (
    Arrow("stage", "key"),
    Arrow("exec", "memo"),
    Arrow("exec", "lookup", "key, if no memo"),
    Arrow("memo", "result", "hit"),
    Arrow("key", "lookup"),
    Arrow("lookup", "result", "hit"),
    Arrow("lookup", "lock", "miss"),
    Arrow("lock", "remotes"),
    Arrow("remotes", "store", "hit"),
    Arrow("remotes", "run", "miss"),
    Arrow("run", "again"),
    Arrow("again", "publish", "no"),
    Arrow("publish", "store"),
    Arrow("store", "result"),
)


def corner(box: Box) -> tuple[int, int]:
    """Return the upper left corner of a box."""
    return BORDER + box.column * (WIDTH + GAP_X), BORDER + box.row * (HEIGHT + GAP_Y)


def draw_box(box: Box) -> str:
    """Return a box as SVG."""
    x, y = corner(box)
    middle = x + WIDTH // 2
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{box.color}" stroke="#556"/>\n'
        f'<text x="{middle}" y="{y + 26}" font-weight="bold">{escape(box.title)}</text>\n'
        f'<text x="{middle}" y="{y + 46}">{escape(box.text)}</text>'
    )


def draw_arrow(arrow: Arrow, boxes: dict[str, Box]) -> str:
    """Return an arrow as SVG: from the side, or the edge, of its start that faces its end."""
    start, end = boxes[arrow.start], boxes[arrow.end]
    (x, y), (to_x, to_y) = corner(start), corner(end)
    if start.row == end.row:
        is_right = end.column > start.column
        x, to_x = (x + WIDTH, to_x - 6) if is_right else (x, to_x + WIDTH + 6)
        y, to_y = y + HEIGHT // 2, to_y + HEIGHT // 2
    else:
        is_down = end.row > start.row
        y, to_y = (y + HEIGHT, to_y - 6) if is_down else (y, to_y + HEIGHT + 6)
        x, to_x = x + WIDTH // 2, to_x + WIDTH // 2
    lines = [f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="#556" marker-end="url(#head)"/>']
    if arrow.word:
        at_x, at_y = (x + to_x) // 2, (y + to_y) // 2 - 6
        anchor = "middle" if start.row == end.row else "start"
        offset = 0 if start.row == end.row else 10
        lines.append(f'<text x="{at_x + offset}" y="{at_y}" text-anchor="{anchor}">{escape(arrow.word)}</text>')
    return "\n".join(lines)


def picture() -> str:
    """Return the SVG."""
    boxes = {box.name: box for box in BOXES}
    columns, rows = max(box.column for box in BOXES) + 1, max(box.row for box in BOXES) + 1
    width = 2 * BORDER + columns * WIDTH + (columns - 1) * GAP_X
    height = 2 * BORDER + rows * HEIGHT + (rows - 1) * GAP_Y
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="sans-serif" font-size="13" text-anchor="middle" fill="#223">',
            '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="2" refY="4" orient="auto">'
            '<path d="M0,1 L7,4 L0,7 z" fill="#556"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *(draw_arrow(arrow, boxes) for arrow in ARROWS),
            *(draw_box(box) for box in BOXES),
            "</svg>\n",
        ]
    )


def main() -> int:
    """Run the command line; return its status."""
    if sys.argv[1:] == ["--check"]:
        is_current = PICTURE.exists() and PICTURE.read_text() == picture()
        if not is_current:
            sys.stderr.write(f"{PICTURE.relative_to(ROOT)} is not current; run python scripts/diagram.py\n")
        return 0 if is_current else 1
    PICTURE.write_text(picture())
    return 0


if __name__ == "__main__":
    sys.exit(main())
