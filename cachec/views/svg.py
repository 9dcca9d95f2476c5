"""Plots as SVG inside a page: drawn once, so that they need no script, follow the page's colours and print.

Each is of the width ``WIDTH`` in its own units, grows with the page, and has a ``<title>`` at each mark, which a
browser shows where the pointer is. For who does not see it there is one sentence; the figures stand in a table beside.
Colours are classes: ``hit``, ``miss``, ``bypass``, ``error``, ``saved``, ``spent``, ``size``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from cachec.views.html import Markup, element, join_markup, text, void

WIDTH = 960

#: Room for the labels of values at the left, and of times below.
_LEFT_MARGIN, _BOTTOM_MARGIN, _TOP_MARGIN = 64, 24, 8

#: Labels of columns that have room side by side.
_MAX_LABELS = 8

#: Bytes of a mark without its title.
_MARK = 110

#: The width of the label of a bar, in characters.
_MAX_LABEL = 36


class Series(NamedTuple):
    """Values of one colour. name: in the legend."""

    name: str
    color: str
    values: Sequence[float]


class Stroke(NamedTuple):
    """A bar on a time line, from and to in seconds, at a height in rows."""

    begin: float
    end: float
    row: int
    color: str
    title: str


def nice_step(most: float, steps: int) -> float:
    """The smallest of 1, 2, 5, 10, ... that takes at most ``steps`` steps to ``most``."""
    least = most / steps
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= least * (1 - 1e-9))


def ticks(most: float, steps: int = 4) -> list[float]:
    """Round values from 0 to the first that is no less than ``most``."""
    if not most > 0 or not math.isfinite(most) or most < 1e-300:
        return [0.0, 1.0]
    step = nice_step(most, steps)
    found = [0.0]
    for number in count(1):
        found.append(number * step)
        if found[-1] >= most * (1 - 1e-9):
            break
    return found


#: Steps of a scale in seconds that a person counts in; of shorter ones 1, 2, 5, 10, ..., and so of hours
_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600, 86400)


def time_ticks(most: float, steps: int = 4) -> list[float]:
    """The same for seconds: minutes and hours are no powers of ten."""
    if most > _TIMES[-1] * steps:
        return [3600.0 * value for value in ticks(most / 3600, steps)]
    if not most > steps:
        return ticks(most, steps)
    step = next(each for each in _TIMES if each * steps >= most)
    return [float(number * step) for number in range(math.ceil(most / step - 1e-9) + 1)]


def columns(
    summary: str,
    labels: Sequence[str],
    series: Sequence[Series],
    shown: Callable[[float], str],
    *,
    scale: Callable[[float], list[float]] = ticks,
    height: int = 220,
) -> Markup:
    """Columns, each the sum of its series, from the first at the bottom. scale: the ticks from 0 to a value."""
    finite = [Series(each.name, each.color, [_drawable(value) for value in each.values]) for each in series]
    totals = [sum(each.values[at] for each in finite) for at in range(len(labels))]
    axis = _Axis(scale(max(totals, default=0.0)), height, shown)
    step = (WIDTH - _LEFT_MARGIN) / max(len(labels), 1)
    marks = []
    for at, label in enumerate(labels):
        base, parts = 0.0, []
        for each in finite:
            value = each.values[at]
            if value > 0:
                top = axis.y(base + value)
                parts.append(
                    _rect(_LEFT_MARGIN + at * step + 0.5, top, max(step - 1, 0.5), axis.y(base) - top, each.color)
                )
                base += value
        if parts:
            words = ", ".join(f"{each.name}: {shown(each.values[at])}" for each in finite if each.values[at])
            marks.append(element("g", element("title", f"{label}: {words}"), *parts))
    return _svg(summary, height, [axis.drawn(), *marks, _labels(labels, step, height)])


def line(
    summary: str,
    labels: Sequence[str],
    values: Sequence[float | None],
    shown: Callable[[float], str],
    height: int = 160,
) -> Markup:
    """Draw shares from 0 to 1 over the same columns; the line has a gap for a missing value."""
    axis = _Axis([0.0, 0.25, 0.5, 0.75, 1.0], height, shown)
    step = (WIDTH - _LEFT_MARGIN) / max(len(labels), 1)
    pieces: list[list[str]] = [[]]
    dots = []
    for at, value in enumerate(values):
        if value is None or not math.isfinite(value):
            pieces.append([])
            continue
        x, y = _LEFT_MARGIN + (at + 0.5) * step, axis.y(min(max(value, 0.0), 1.0))
        pieces[-1].append(f"{x:.1f},{y:.1f}")
        title = element("title", f"{labels[at]}: {shown(value)}")
        dots.append(element("circle", title, class_="rate", cx=f"{x:.1f}", cy=f"{y:.1f}", r="3"))
    lines = [void("polyline", class_="rate", points=" ".join(piece)) for piece in pieces if len(piece) > 1]
    return _svg(summary, height, [axis.drawn(), *lines, *dots, _labels(labels, step, height)])


def bars(summary: str, labels: Sequence[str], series: Sequence[Series], shown: Callable[[float], str]) -> Markup:
    """Horizontal bars, one below the other; those of one label share a line."""
    finite = [Series(each.name, each.color, [_drawable(value) for value in each.values]) for each in series]
    most = max((max(each.values, default=0.0) for each in finite), default=0.0) or 1.0
    thick = 16
    line_height = thick * len(finite) + 10
    left_margin, right = 270, 90
    drawn = []
    for at, label in enumerate(labels):
        y = at * line_height
        cut = label if len(label) <= _MAX_LABEL else "…" + label[1 - _MAX_LABEL :]
        words = ", ".join(f"{each.name}: {shown(each.values[at])}" for each in finite)
        parts: list[Markup] = [
            element("title", f"{label}: {words}"),
            element("text", cut, x=left_margin - 8, y=y + line_height / 2 + 1, class_="end"),
        ]
        for number, each in enumerate(finite):
            width = each.values[at] / most * (WIDTH - left_margin - right)
            top = y + 5 + number * thick
            parts.append(_rect(left_margin, top, max(width, 0.5 if each.values[at] else 0.0), thick - 3, each.color))
            parts.append(element("text", shown(each.values[at]), x=f"{left_margin + width + 6:.1f}", y=top + thick / 2))
        drawn.append(element("g", *parts))
    return _svg(summary, max(line_height * len(labels), 1), drawn)


def timeline(
    summary: str, rows: Sequence[str], strokes: Sequence[Stroke], seconds: float, shown: Callable[[float], str]
) -> Markup:
    """Bars on a time line, and the name of each row at the left; a row without a name goes with the one above."""
    scale = time_ticks(seconds, 8)
    end, left_margin, thick = scale[-1], 110, 14
    height = thick * len(rows) + _BOTTOM_MARGIN + _TOP_MARGIN

    def x(value: float) -> float:
        return left_margin + value / end * (WIDTH - left_margin - 8)

    drawn = []
    for value in scale:
        drawn.append(
            void("line", class_="grid", x1=f"{x(value):.1f}", x2=f"{x(value):.1f}", y1=0, y2=height - _BOTTOM_MARGIN)
        )
        drawn.append(
            element("text", _tick(value, shown), x=f"{x(value):.1f}", y=height - _BOTTOM_MARGIN / 2, class_="middle")
        )
    for number, name in enumerate(rows):
        if name:
            drawn.append(element("text", name, x=left_margin - 8, y=_TOP_MARGIN + thick * (number + 0.5), class_="end"))
    for stroke in strokes:
        start = x(stroke.begin)
        place = (start, _TOP_MARGIN + thick * stroke.row + 1, max(x(stroke.end) - start, 0.8), thick - 2)
        drawn.append(element("g", element("title", stroke.title), _rect(*place, stroke.color)))
    return _svg(summary, height, drawn)


def visible(strokes: Sequence[Stroke], seconds: float, most: int) -> list[Stroke]:
    """Those that can be told apart: of what is narrower than a pixel one a pixel and row; of these the longest, as far
    as ``most`` bytes of markup go."""
    pixel = seconds / WIDTH
    taken: set[tuple[int, int]] = set()
    selected = []
    for stroke in sorted(strokes, key=lambda each: each.begin - each.end):
        if stroke.end - stroke.begin < pixel:
            place = (stroke.row, int(stroke.begin / pixel))
            if place in taken:
                continue
            taken.add(place)
        most -= _MARK + len(text(stroke.title).encode())
        if most < 0:
            break
        selected.append(stroke)
    return selected


def swatch(color: str) -> Markup:
    """A square of a colour, for a legend; nothing to be read aloud."""
    square = void("rect", class_=color, width=10, height=10)
    return element("svg", square, viewBox="0 0 10 10", aria_hidden="true")


class _Axis:
    """The scale at the left, with a line at each tick."""

    def __init__(self, scale: Sequence[float], height: int, shown: Callable[[float], str]) -> None:
        self._scale = scale
        self._height = height
        self._shown = shown

    def y(self, value: float) -> float:
        """Where a value is drawn."""
        plot_height = self._height - _BOTTOM_MARGIN - _TOP_MARGIN
        return _TOP_MARGIN + plot_height * (1 - value / self._scale[-1])

    def drawn(self) -> Markup:
        """The lines and their labels."""
        parts = []
        for value in self._scale:
            y = f"{self.y(value):.1f}"
            parts.append(void("line", class_="grid", x1=_LEFT_MARGIN, x2=WIDTH, y1=y, y2=y))
            parts.append(element("text", _tick(value, self._shown), x=_LEFT_MARGIN - 8, y=y, class_="end"))
        return join_markup(parts)


def _labels(labels: Sequence[str], step: float, height: int) -> Markup:
    every = max(1, math.ceil(len(labels) / _MAX_LABELS))
    drawn = []
    for at in range(0, len(labels), every):
        x = _LEFT_MARGIN + (at + 0.5) * step
        drawn.append(element("text", labels[at], x=f"{x:.1f}", y=height - _BOTTOM_MARGIN / 2, class_="middle"))
    return join_markup(drawn)


def _rect(x: float, y: float, width: float, height: float, color: str) -> Markup:
    return void(
        "rect", class_=color, x=f"{x:.1f}", y=f"{y:.1f}", width=f"{width:.1f}", height=f"{max(height, 0.5):.1f}"
    )


def _tick(value: float, shown: Callable[[float], str]) -> str:
    return shown(value) if value else "0"


def _drawable(value: float) -> float:
    """0 for what nothing measured can be: less than that, endless, or so large that a sum is."""
    return value if 0 < value < 1e100 else 0.0


def _svg(summary: str, height: float, parts: Sequence[Markup]) -> Markup:
    box = f"0 0 {WIDTH} {height:g}"
    return element("svg", *parts, viewBox=box, role="img", aria_label=summary, class_="plot")
