"""Global random generators: a run that moved one on without seeding it is found out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from cachec.worker.generators import Generators


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    """The generators of the tests go on as they were."""
    ours, theirs = random.getstate(), np.random.get_state()
    yield
    random.setstate(ours)
    np.random.set_state(theirs)


MOVES: dict[str, tuple[Callable[[], object], list[str]]] = {
    "nothing": (lambda: None, []),
    "other generators": (lambda: (random.Random(0).random(), np.random.default_rng(0).random()), []),
    "one number": (random.random, ["random"]),
    "half of a pair": (lambda: random.gauss(0, 1), ["random"]),
    "many blocks": (lambda: random.getrandbits(32 * 624 * 300 + 32), ["random"]),
    "seeded": (lambda: (random.seed(1), random.random()), []),
    "state set": (lambda: random.setstate(random.Random(5).getstate()), []),
    "seeded by nothing": (random.seed, []),
    "array": (lambda: np.random.rand(3), ["numpy.random"]),
    "normal": (lambda: np.random.randn(1), ["numpy.random"]),
    "large array": (lambda: np.random.rand(200_000), ["numpy.random"]),
    "numpy seeded": (lambda: (np.random.seed(1), np.random.randn(3)), []),
    "both": (lambda: (np.random.shuffle([1, 2, 3]), random.shuffle([1, 2, 3])), ["random", "numpy.random"]),
}


@pytest.mark.parametrize("move", MOVES)
def test_generators_that_a_run_moved(move: str) -> None:
    run, moved = MOVES[move]
    random.random()
    watched = Generators()
    run()
    assert watched.moved(seconds=0.01) == moved


def test_half_of_a_pair_that_is_used_up_is_a_move() -> None:
    random.gauss(0, 1)
    np.random.randn(1)
    watched = Generators()
    random.gauss(0, 1)
    np.random.randn(1)
    assert watched.moved(seconds=0.01) == ["random", "numpy.random"]
