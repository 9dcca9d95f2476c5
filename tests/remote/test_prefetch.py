"""Pieces that another thread fetches meanwhile are the same, and end as they do."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.remote.prefetch import prefetch_pieces


def test_all_pieces_come_in_their_order() -> None:
    pieces = [bytes([number]) for number in range(100)]
    assert list(prefetch_pieces(iter(pieces))) == pieces
    assert list(prefetch_pieces(iter(()))) == []


def test_what_fails_is_raised_behind_what_came() -> None:
    def failing() -> Iterator[bytes]:
        yield b"1"
        raise StoreFault(Fault.REMOTE_TIMEOUT, "too late")

    pieces = prefetch_pieces(failing())
    assert next(pieces) == b"1"
    with pytest.raises(StoreFault, match="too late"):
        next(pieces)


def test_who_stops_early_stops_the_other() -> None:
    """No more is fetched than lies between, and what fetched it is closed in its own thread."""
    closed, fetched = threading.Event(), []

    def endless() -> Iterator[bytes]:
        try:
            while True:
                fetched.append(threading.current_thread())
                yield b"x"
        finally:
            fetched.append(threading.current_thread())
            closed.set()

    pieces = prefetch_pieces(endless())
    assert next(pieces) == b"x"
    pieces.close()
    assert closed.wait(60)
    assert len(fetched) <= 6
    assert len(set(fetched)) == 1
    assert fetched[0] is not threading.current_thread()
