"""Random generators of the process: which of them a run has drawn from or seeded, and their states."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from cachec.key import random_generators
from cachec.programs.registry import Plugins, installed_plugins
from cachec.worker.generator_states import Generators


@pytest.fixture
def plugins() -> Iterator[Plugins]:
    """The generators of the tests go on as they were."""
    ours, theirs = random.getstate(), np.random.get_state()
    found = installed_plugins()
    assert random_generators.snapshot(found.all()).keys() >= {"random", "numpy.random"}
    yield found
    random.setstate(ours)
    np.random.set_state(theirs)


#: What a run does; which generators it has drawn from without a seed; which it has set a seed of.
MOVES: dict[str, tuple[Callable[[], object], list[str], list[str]]] = {
    "nothing": (lambda: None, [], []),
    "other generators": (lambda: (random.Random(0).random(), np.random.default_rng(0).random()), [], []),
    "one number": (random.random, ["random"], []),
    "half of a pair": (lambda: random.gauss(0, 1), ["random"], []),
    "many blocks": (lambda: random.getrandbits(32 * 624 * 300 + 32), ["random"], []),
    "seeded": (lambda: (random.seed(1), random.random()), [], ["random"]),
    "seeded as before": (lambda: random.seed(7), [], ["random"]),
    "state set": (lambda: random.setstate(random.Random(5).getstate()), [], ["random"]),
    "array": (lambda: np.random.rand(3), ["numpy.random"], []),
    "normal": (lambda: np.random.randn(1), ["numpy.random"], []),
    "numpy seeded": (lambda: (np.random.seed(1), np.random.randn(3)), [], ["numpy.random"]),
    "numpy seeded as before": (lambda: np.random.seed(7), [], ["numpy.random"]),
    "numpy state set": (lambda: np.random.set_state(np.random.RandomState(5).get_state()), ["numpy.random"], []),
    "both": (lambda: (np.random.shuffle([1, 2, 3]), random.shuffle([1, 2, 3])), ["random", "numpy.random"], []),
}


@pytest.mark.parametrize("move", MOVES)
def test_generators_that_a_run_moved(move: str, plugins: Plugins) -> None:
    run, drawn, seeded = MOVES[move]
    random.seed(7)
    np.random.seed(7)
    watched = Generators(plugins, random_generators.snapshot(plugins.all()))
    run()
    names, left = watched.outcome()
    assert list(names) == drawn
    assert [name for name, each in left.items() if each.seeds] == seeded
    assert {name: each.state for name, each in left.items()} == {
        name: state for name, state in random_generators.snapshot(plugins.all()).items() if name in drawn + seeded
    }


def test_half_of_a_pair_that_is_used_up_is_a_move(plugins: Plugins) -> None:
    random.gauss(0, 1)
    np.random.randn(1)
    watched = Generators(plugins, random_generators.snapshot(plugins.all()))
    random.gauss(0, 1)
    np.random.randn(1)
    assert watched.outcome()[0] == ("random", "numpy.random")


def test_a_worker_draws_what_the_caller_would(plugins: Plugins) -> None:
    random.gauss(0, 1)
    np.random.randn(1)
    states = random_generators.snapshot(plugins.all())
    expected = random.gauss(0, 1), random.random(), np.random.randn(3).tolist()
    random.seed()
    np.random.seed()
    watched = Generators(plugins, states)
    assert (random.gauss(0, 1), random.random(), np.random.randn(3).tolist()) == expected
    watched.outcome()
    assert type(random._inst) is random.Random


def test_what_a_stored_result_leaves_does_not_count_as_a_seed_where_it_set_none(plugins: Plugins) -> None:
    states = random_generators.snapshot(plugins.all())
    first = Generators(plugins, states)
    random.random()
    np.random.rand()
    _, left = first.outcome()
    second = Generators(plugins, states)
    random_generators.put(plugins, left)
    assert second.outcome() == (("random", "numpy.random"), left)


def test_bytes_that_are_no_state(plugins: Plugins) -> None:
    for name, state in random_generators.snapshot(plugins.all()).items():
        found = random_generators.find_generator(plugins, name)
        assert found is not None
        assert found.is_state(state)
        assert not found.is_state(state[:-1])
        position = 624 * 4 if name != "torch" else 8
        assert not found.is_state(state[:position] + b"\xff\xff\x00\x00" + state[position + 4 :])


def test_a_method_of_a_generator_is_that_of_the_process() -> None:
    assert random_generators.shared_generator(random.shuffle.__self__) == ("random", "_inst")  # type: ignore[attr-defined]
    assert random_generators.shared_generator(random.Random(0)) is None
    assert random_generators.shared_generator(None) is None
    assert random_generators.shared_generator(np.random.mtrand._rand) == ("numpy.random.mtrand", "_rand")
    assert "random" in sys.modules
