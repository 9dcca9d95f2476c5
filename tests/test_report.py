"""Values for a person."""

from __future__ import annotations

import pytest

from cachec import report


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 19, "1.5 MiB"),
        (20 << 30, "20.0 GiB"),
        (1 << 51, "2048.0 TiB"),
    ],
)
def test_size(nbytes: int, words: str) -> None:
    assert report.size(nbytes) == words


@pytest.mark.parametrize(
    ("past", "words"),
    [
        (-5, "now"),
        (0.5, "now"),
        (5, "5 s ago"),
        (59, "59 s ago"),
        (60, "1 min ago"),
        (7200, "2 h ago"),
        (864000, "10 d ago"),
    ],
)
def test_age(past: float, words: str) -> None:
    assert report.age(1000.0, 1000.0 + past) == words
    assert report.age(None, 0.0) == "never"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (0.0, "0.00 s"),
        (37e-6, "37.0 µs"),
        (0.002, "2.00 ms"),
        (0.42, "0.42 s"),
        (90, "1.5 min"),
        (5400, "1.5 h"),
    ],
)
def test_period(seconds: float | None, words: str) -> None:
    assert report.period(seconds) == words


def test_share() -> None:
    assert (report.share(None), report.share(0.5)) == ("-", "50.0%")
