"""Weights in a tree: names by path, the containers again, and what of them is in a key."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import cachec
from cachec import Reason
from cachec.errors import CachecWarning, UnknownWeight, UsageError, WeightError
from cachec.weights import WeightSet, from_arrays, open_weights


class Pair(NamedTuple):
    left: Any
    right: Any


def array(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape or (2, 3)).astype("f4")


def params(seed: int = 0) -> dict[str, Any]:
    return {
        "layers": [{"w": array(seed, 3, 3), "b": array(seed + 1, 3)}, {"w": array(seed + 2, 3, 3), "b": None}],
        "head": Pair((array(seed + 3),), array(seed + 4)),
        "empty": [],
    }


NAMES = ["['head'].left[0]", "['head'].right", "['layers'][0]['b']", "['layers'][0]['w']", "['layers'][1]['w']"]


def test_names_are_paths_and_arrays_are_taken_by_reference() -> None:
    tree = params()
    weights = WeightSet.from_tree(tree)
    assert list(weights) == NAMES
    assert np.shares_memory(weights["['layers'][0]['w']"].read(), tree["layers"][0]["w"])


def test_the_tree_comes_back() -> None:
    tree = params()
    back = WeightSet.from_tree(tree).unflatten()
    assert type(back["head"]) is Pair
    assert type(back["head"].left) is tuple
    assert back["layers"][1]["b"] is None
    assert back["empty"] == []
    assert list(back) == sorted(tree)
    assert np.array_equal(back["layers"][0]["b"], tree["layers"][0]["b"])
    assert from_arrays({"a": array(0)}).unflatten(lambda weight: weight.name) == {"a": "a"}


@pytest.mark.parametrize(
    "again",
    [
        lambda weights: weights.placeholders(),
        lambda weights: weights.rename(lambda name: name + "!"),
        lambda weights: weights.select(["*"]),
        lambda weights: weights.overlay({NAMES[0]: array(9)}),
        lambda weights: weights.derive({NAMES[0]: lambda weight: weight.read() * 2}),
        lambda weights: weights.shard({NAMES[4]: 0}, 0, 3),
    ],
)
def test_sets_of_the_same_weights_hang_in_the_same_tree(again: Any) -> None:
    names = again(WeightSet.from_tree(params())).unflatten(lambda weight: weight.name.rstrip("!"))
    assert names == WeightSet.from_tree(params()).unflatten(lambda weight: weight.name)


@pytest.mark.parametrize(
    "again", [lambda weights: weights.select(exclude=[NAMES[0]]), lambda weights: weights.overlay({"new": array(9)})]
)
def test_other_weights_hang_in_none(again: Any) -> None:
    weights = again(WeightSet.from_tree(params()))
    assert weights.unflatten(lambda weight: weight.name) == {name: name for name in weights}


def test_an_array_in_two_places_is_one_weight() -> None:
    shared = array(0)
    weights = WeightSet.from_tree({"in": shared, "out": [shared]})
    assert weights.specs["['out'][0]"].alias == "['in']"
    back = weights.unflatten()
    assert back["in"] is back["out"][0]
    stated = WeightSet.from_tree({"in": array(0), "out": [array(0)]}, tied=[("['in']", "['out'][0]")])
    assert stated.spec_digest == weights.spec_digest
    assert WeightSet.from_tree({"in": array(0), "out": [array(0)]}).specs["['in']"].alias is None


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (array(0), "expected a tree of weights"),
        ({1: array(0), "1": array(1)}, "can't be sorted"),
        ({"a": [array(0), 1.5]}, r"\['a'\]\[1\].*expected an array"),
        ({"a": object()}, "expected an array"),
    ],
)
def test_what_is_no_tree_of_weights_is_refused(tree: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        WeightSet.from_tree(tree)


def test_a_tree_that_contains_itself_is_refused() -> None:
    tree: dict[str, Any] = {}
    tree["a"] = tree
    with pytest.raises(UsageError, match="contains itself"):
        WeightSet.from_tree(tree)


# --- a checkpoint's weights in a tree


@pytest.mark.parametrize(
    ("spell", "names"),
    [
        (lambda path: path, None),
        (lambda path: ".".join(re.findall(r"\w+", path)), None),
        (lambda path: f"model/{path}", lambda path: f"model/{path}"),
        (lambda path: str(NAMES.index(path)), {name: str(index) for index, name in enumerate(NAMES)}),
    ],
)
def test_a_checkpoint_opens_as_a_tree(spell: Any, names: Any, tmp_path: Path) -> None:
    memory = WeightSet.from_tree(params()).rename(spell)
    memory.overlay({"beside": array(11)}).save(tmp_path / "m.safetensors")
    weights = open_weights(tmp_path / "m.safetensors").tree(like=params(50), names=names)
    assert set(weights) == set(memory)
    got = weights.unflatten()
    assert np.array_equal(got["head"].left[0], params()["head"].left[0])
    assert not got["head"].right.flags.owndata


@pytest.mark.parametrize(
    ("like", "names", "error", "words"),
    [
        ({"a": array(0), "x": array(0)}, None, UnknownWeight, "no weight 'x'"),
        ({"a": array(0), "bee": array(0)}, str, UnknownWeight, "names="),
        ({"a": array(0, 4)}, None, WeightError, r"expected float32 \[4\], found float32 \[2, 3\]"),
        ({"a": array(0).astype("f8")}, None, WeightError, "expected float64"),
    ],
)
def test_a_tree_that_does_not_fit_is_refused(like: Any, names: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        from_arrays({"a": array(0), "b": array(1)}).tree(like=like, names=names)


# --- in keys


@pytest.fixture
def cache(tmp_path: Path) -> cachec.Cache:
    return cachec.Cache(tmp_path / "store", log="off")


def test_the_containers_count_in_a_key_and_values_do_not(cache: cachec.Cache) -> None:
    @cache.stage
    def names(weights: cachec.WeightSet) -> str:
        return repr(weights.unflatten(lambda weight: weight.name))

    first = WeightSet.from_tree(params())
    assert cache.call(names, first)[1].reason is Reason.FIRST_RUN
    assert cache.call(names, WeightSet.from_tree(params(90)))[1].reason is Reason.HIT
    reversed_keys = dict(reversed(params(90).items()))
    assert cache.call(names, WeightSet.from_tree(reversed_keys))[1].reason is Reason.HIT
    pair = params()["head"]
    for other in (Pair([*pair.left], pair.right), tuple(pair), [pair.left, pair.right]):
        changed = WeightSet.from_tree(params() | {"head": other})
        value, outcome = cache.call(names, changed)
        assert outcome.reason in {Reason.WEIGHT_SPEC_CHANGED, Reason.CODE_CHANGED}  # Pair is code too
        assert value == names.uncached(changed)
    flat = from_arrays({name: first[name].read() for name in first})
    assert cache.call(names, flat)[1].reason is Reason.WEIGHT_SPEC_CHANGED


def test_a_set_that_is_handed_through_is_the_caller_s_tree(cache: cachec.Cache) -> None:
    @cache.stage
    def changed(weights: cachec.WeightSet) -> cachec.WeightSet:
        return weights.derive({NAMES[0]: lambda weight: weight.read() * 2})

    for seed in (0, 0, 9):
        tree = params(seed)
        got = changed(WeightSet.from_tree(tree)).unflatten()
        assert np.array_equal(got["head"].left[0], tree["head"].left[0] * 2)
        assert np.shares_memory(got["layers"][0]["w"], tree["layers"][0]["w"])


def test_plain_arrays_of_an_argument_are_warned_of_once(cache: cachec.Cache) -> None:
    @cache.stage
    def total(params: object, scale: np.ndarray[Any, Any]) -> float:
        return float(scale.sum())

    tree = {"layers": [{"w": np.zeros((512, 512), "f4"), "b": np.zeros(3, "f4")} for _ in range(4)]}
    with pytest.warns(CachecWarning) as caught:
        total(tree, np.zeros(3, "f4"))
    said = [str(each.message) for each in caught]
    assert len(said) == 1
    assert "params: 8 arrays, 4 MB, keyed by content; pass a WeightSet to key them by name" in said[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total({"small": np.zeros(3, "f4")}, np.zeros(3, "f4"))
