"""Plots: scales, and marks that stand for what they show."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from cachec.views import svg
from cachec.views.svg import Series, Stroke


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (0, [0, 1]),
        (-1, [0, 1]),
        (math.inf, [0, 1]),
        (math.nan, [0, 1]),
        (4, [0, 1, 2, 3, 4]),
        (4.1, [0, 2, 4, 6]),
        (3500, [0, 1000, 2000, 3000, 4000]),
        (0.003, [0, 0.001, 0.002, 0.003]),
    ],
)
def test_ticks(most: float, expected: list[float]) -> None:
    assert svg.ticks(most) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (3, [0, 1, 2, 3]),
        (61, [0, 30, 60, 90]),
        (100, [0, 30, 60, 90, 120]),
        (7000, [0, 1800, 3600, 5400, 7200]),
        (200 * 3600, [0, 180000, 360000, 540000, 720000]),
        (1e9, [0, 3.6e8, 7.2e8, 1.08e9]),
    ],
)
def test_ticks_of_seconds_are_those_that_people_count_in(most: float, expected: list[float]) -> None:
    assert svg.time_ticks(most) == pytest.approx(expected)


def marks(drawn: str, color: str) -> list[dict[str, float]]:
    """The rectangles of a colour."""
    found = ElementTree.fromstring(drawn).iter("rect")
    return [
        {name: float(at) for name, at in each.items() if name != "class"}
        for each in found
        if each.get("class") == color
    ]


def titles(drawn: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(drawn).iter("title")]


def test_columns_are_as_high_as_their_values_and_stand_on_one_another() -> None:
    series = [Series("hits", "hit", [4, 0, 2]), Series("misses", "miss", [0, 0, 2])]
    drawn = svg.columns("s", ["a", "b", "c"], series, "{:g}".format)
    first, second = marks(drawn, "hit")
    (on_top,) = marks(drawn, "miss")
    assert first["height"] == pytest.approx(2 * second["height"], abs=0.2)
    assert on_top["height"] == pytest.approx(second["height"], abs=0.2)
    assert on_top["y"] + on_top["height"] == pytest.approx(second["y"], abs=0.2)
    assert on_top["y"] == pytest.approx(first["y"], abs=0.2)
    assert titles(drawn) == ["a: hits: 4", "c: hits: 2, misses: 2"]


def test_a_line_is_broken_where_there_is_no_value() -> None:
    drawn = svg.line("s", list("abcdef"), [1.0, 0.5, None, 0.25, None, 0.0], "{:.0%}".format)
    lines = [each.get("points", "").split() for each in ElementTree.fromstring(drawn).iter("polyline")]
    assert [len(points) for points in lines] == [2]
    assert titles(drawn) == ["a: 100%", "b: 50%", "d: 25%", "f: 0%"]
    top, middle = (float(point.partition(",")[2]) for point in lines[0])
    assert top < middle


def test_bars_are_as_wide_as_their_values() -> None:
    drawn = svg.bars("s", ["a" * 200, "b"], [Series("size", "size", [8, 2])], "{:g} B".format)
    wide, narrow = marks(drawn, "size")
    assert wide["width"] == pytest.approx(4 * narrow["width"], abs=0.5)
    assert titles(drawn) == ["a" * 200 + ": size: 8 B", "b: size: 2 B"]
    assert "a" * 100 not in "".join(each.text or "" for each in ElementTree.fromstring(drawn).iter("text"))


def test_a_timeline_puts_calls_where_they_were() -> None:
    strokes = [Stroke(0, 5, 0, "miss", "first"), Stroke(5, 10, 1, "hit", "second")]
    drawn = svg.timeline("s", ["pid 1", ""], strokes, 10, "{:g}".format)
    (first,), (second,) = marks(drawn, "miss"), marks(drawn, "hit")
    assert first["x"] + first["width"] == pytest.approx(second["x"], abs=0.2)
    assert second["y"] > first["y"]


def test_of_what_is_too_narrow_to_be_told_apart_one_is_drawn() -> None:
    crowd = [Stroke(at / 1e6, at / 1e6 + 1e-7, at % 2, "hit", str(at)) for at in range(5000)]
    long = [Stroke(1, 50, 0, "miss", "long"), Stroke(1, 40, 1, "miss", "shorter")]
    kept = svg.visible(crowd + long, 100.0, 10_000)
    assert [each.title for each in kept[:2]] == ["long", "shorter"]
    assert sorted(each.row for each in kept[2:]) == [0, 1]
    assert svg.visible(crowd + long, 100.0, 200) == long[:1]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -5.0, 1e308])
def test_no_value_breaks_a_plot(value: float) -> None:
    series = [Series("a", "hit", [value, 1.0]), Series("b", "miss", [1e308, 1.0])]
    for drawn in (
        svg.columns("s", ["x", "y"], series, str),
        svg.bars("s", ["x", "y"], series, str),
        svg.line("s", ["x", "y"], [value, 0.5], str),
    ):
        for each in ElementTree.fromstring(drawn).iter():
            for name, place in each.items():
                if name in {"x", "y", "width", "height", "cx", "cy"}:
                    assert math.isfinite(float(place)), drawn
                if name in {"width", "height"}:
                    assert float(place) >= 0
