"""The meter: throughput on a terminal, a line now and then in a pipe, and a new count where bytes become fewer."""

from __future__ import annotations

import io

import pytest

from cachec.cli.meter import Meter, throughput

MIB = 1 << 20


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("nbytes", "seconds", "text"),
    [(0, 1.0, "0 B/s"), (MIB, 0.5, "2.0 MiB/s"), (5, 0.0, "-"), (5, -1.0, "-")],
)
def test_throughput(nbytes: int, seconds: float, text: str) -> None:
    assert throughput(nbytes, seconds) == text


def test_a_pipe_gets_a_line_every_ten_seconds() -> None:
    clock, out = Clock(), io.StringIO()
    with Meter("add m", stream=out, clock=clock) as meter:
        for second in range(31):
            clock.now = 100.0 + second
            meter(second * MIB, 100 * MIB)
    assert out.getvalue().splitlines() == [
        f"cachec: add m: {done}.0 MiB of 100.0 MiB, 1.0 MiB/s" for done in (10, 20, 30)
    ]


def test_what_is_short_says_nothing_in_a_pipe() -> None:
    out = io.StringIO()
    with Meter("add m", stream=out, clock=Clock()) as meter:
        for done in range(1000):
            meter(done, 999)
    assert out.getvalue() == ""


def test_a_new_count_has_a_throughput_of_its_own() -> None:
    clock, out = Clock(), io.StringIO()
    with Meter("add m", stream=out, clock=clock) as meter:
        meter(0, 0)
        clock.now += 10
        meter(100 * MIB, 0)  # a size that is not known
        meter(0, 50 * MIB)  # the next file
        clock.now += 10
        meter(20 * MIB, 50 * MIB)
    assert out.getvalue().splitlines() == [
        "cachec: add m: 100.0 MiB, 10.0 MiB/s",
        "cachec: add m: 20.0 MiB of 50.0 MiB, 2.0 MiB/s",
    ]


def test_what_was_there_already_is_no_throughput() -> None:
    """A download that is continued begins in the middle."""
    clock, out = Clock(), io.StringIO()
    with Meter("add m", stream=out, clock=clock) as meter:
        meter(90 * MIB, 100 * MIB)
        clock.now += 10
        meter(100 * MIB, 100 * MIB)
    assert out.getvalue() == "cachec: add m: 100.0 MiB of 100.0 MiB, 1.0 MiB/s\n"


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_that_goes() -> None:
    out = Terminal()

    def interrupted() -> None:
        with Meter("add m", stream=out) as meter:
            meter(0, 4 * MIB)
            meter(4 * MIB, 4 * MIB)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    text = out.getvalue()
    assert "add m" in text
    assert "4.0/4.0 MiB" in text
    assert text.rstrip("\r\n").endswith("\x1b[2K"), "the bar is wiped, whatever ends it"
