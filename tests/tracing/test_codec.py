"""The record of a run as bytes: what is written is read again, and a cut message is refused, not repaired."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from cachec.tracing.accesses import Accesses, Change, Effect, Kind, State, TracedInput, TraceProblem, TraceProblemKind
from cachec.tracing.codec import DamagedRecord, decode, encode
from tests.effort import WHOLE
from tests.tracing.conftest import run

_STATE = State(1, 2, 3, 4, 5, 6, 2**63, 8, 9)
FULL = Accesses(
    returncode=-9,
    inputs=(
        TracedInput("in", "/w", True, Kind.CONTENT | Kind.STATUS, _STATE, 0, None, None, 0),
        TracedInput("/d", "", False, Kind.LISTING, None, 2, "/real", ("a", "b"), Effect.CREATED | Effect.REMOVED),
        TracedInput("", "", False, 31, None, 2, "", (), 15),
    ),
    changes=(Change("/w/out", Effect.CREATED, None, _STATE, 0o644),),
    problems=(TraceProblem(TraceProblemKind.NETWORK, "127.0.0.1 port 1"),),
    may_be_interrupted=True,
    notifications=12,
    uses_stdin=True,
    uses_descriptor=False,
    uses_umask=False,
    asks_for_terminal=True,
)


def anything(random_: random.Random, like: Any) -> Any:
    """A value of the type of ``like``."""
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*(anything(random_, each) for each in like))
    if isinstance(like, tuple):
        return tuple(anything(random_, random_.choice(like)) for _ in range(random_.randrange(4))) if like else ()
    if isinstance(like, str) and type(like) is str:
        return os.fsdecode(bytes(random_.randrange(1, 256) for _ in range(random_.randrange(12))))
    if isinstance(like, bool) or like is None or isinstance(like, TraceProblemKind):
        return like
    return random_.choice((random_.randrange(256), -random_.randrange(256), random_.getrandbits(64)))


@pytest.mark.parametrize("seed", range(300 if WHOLE else 30))
def test_round_trip(seed: int) -> None:
    accesses = anything(random.Random(seed), FULL) if seed else FULL
    again = decode(encode(accesses))
    assert again == accesses
    assert repr(again) == repr(accesses)  # the types too


def test_round_trip_of_a_run(work: object) -> None:
    accesses = run("sh", "-c", "ls; echo x > \udcff; cat none")
    assert any("\udcff" in change.path for change in accesses.changes)
    assert repr(decode(encode(accesses))) == repr(accesses)


def test_a_cut_message_is_refused() -> None:
    data = encode(FULL)
    for size in range(len(data)):
        with pytest.raises(DamagedRecord):
            decode(data[:size])
    for wrong in (b"\xff", b"[" * 100_000, b"1", b"null", b"{}", b"[1, 2]", data + b" 1"):
        with pytest.raises(DamagedRecord):
            decode(wrong)
