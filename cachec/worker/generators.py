"""The global random generators of ``random`` and ``numpy.random``: whether a run has moved one on."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from typing import Any, Final

__all__ = ["Generators", "import_generators"]

#: At most so many blocks of numbers are drawn to find out whether a generator was only moved on: about a second.
_MOST_BLOCKS: Final = 200_000
#: No program draws more blocks in a second.
_BLOCKS_A_SECOND: Final = 200_000
_WORDS: Final = 624

#: The words and the position of a Mersenne Twister (mt19937.c); then what is left of a pair of normal numbers.
_Twister = tuple[tuple[int, ...], Any]


class Generators:
    """The global generators of ``random`` and ``numpy.random``, watched during a run.

    A run that seeds one first does not depend on what it was before. Limit: one that draws and then seeds.
    """

    def __init__(self) -> None:
        self._before = dict(_twisters())

    def moved(self, seconds: float) -> list[str]:
        """Those that moved on since, and were not seeded anew. seconds: how long the run took."""
        blocks = min(_MOST_BLOCKS, int(seconds * _BLOCKS_A_SECOND) + 1000)
        return [
            name
            for name, after in _twisters()
            if after != (before := self._before.get(name)) and (before is None or _has_drawn(before, after, blocks))
        ]


def import_generators() -> None:
    """Import the generators of libraries that are imported: of one that comes later, no state from before is known."""
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random")


def _twisters() -> Iterator[tuple[str, _Twister]]:
    _, words, left = random.getstate()
    yield "random", (words, left)
    module = sys.modules.get("numpy.random")
    if module is not None and hasattr(module, "get_state"):
        state = module.get_state(legacy=False)
        if state["bit_generator"] == "MT19937":
            words = (*state["state"]["key"].tolist(), state["state"]["pos"])
            yield "numpy.random", (words, (state["has_gauss"], state["gauss"]))


def _has_drawn(before: _Twister, after: _Twister, blocks: int) -> bool:
    """Whether a generator comes from one state to the other by drawing numbers, at most so many blocks of them."""
    if before[0][:_WORDS] == after[0][:_WORDS]:
        return True
    ours, theirs = random.Random(), random.Random()
    ours.setstate((3, (*before[0][:_WORDS], _WORDS), None))
    theirs.setstate((3, (*after[0][:_WORDS], 0), None))
    sought = theirs.getrandbits(32 * _WORDS)
    return any(ours.getrandbits(32 * _WORDS) == sought for _ in range(blocks))
