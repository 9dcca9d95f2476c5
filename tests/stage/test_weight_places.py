"""Where the bytes of weights lie, and in which order, is in no key: a stage sees neither."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachec
from cachec import WeightSet
from cachec.model import Reason

ARRAYS = {name: np.full((2, 4), number, "f4") for number, name in enumerate(("w", "b", "m", "a"))}


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """A safetensors file with the tensors in this order, one after another."""
    header, at = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(each.tobytes() for each in arrays.values()))
    return path


def plain(weights: WeightSet) -> WeightSet:
    return weights


VIEWS: dict[str, Callable[[WeightSet], WeightSet]] = {
    "whole": plain,
    "renamed": lambda weights: weights.rename(lambda name: f"x.{name}"),
    "selected": lambda weights: weights.select(exclude=["m"]),
    "composed": lambda weights: WeightSet.from_weights({f"y.{name}": weight for name, weight in weights.items()}),
    "overlaid": lambda weights: weights.overlay({"b": np.ones((2, 4), "f4")}),
    "derived": lambda weights: weights.derive({"b": lambda weight: weight.read() + 1}),
    "sliced": lambda weights: weights.shard({"*": 0}, 1, 2),
}
ASKED: dict[str, Callable[[WeightSet], Any]] = {
    "order": lambda weights: [weight.name for weight in weights.stream()],
    "order without a thread": lambda weights: [weight.name for weight in weights.stream(read_ahead=0)],
    "place": lambda weights: [None if weight.place() is None else str(weight.place()) for weight in weights.values()],
    "extent": lambda weights: [
        None if (found := weight.extent()) is None else found.offset for weight in weights.values()
    ],
}


@pytest.mark.sampled
@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys())
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("access", ["mmap", "read"])
def test_one_key_one_result(cache, tmp_path, view, ask, access):
    """The same bytes under the same names: a hit, and what an uncached run gives."""

    @cache.stage(ignore=["view", "ask"])
    def asked(weights: WeightSet, view: Callable[..., Any], ask: Callable[..., Any]) -> list[object]:
        return ask(view(weights))

    files = [
        write(tmp_path / "1.safetensors", ARRAYS),
        write(tmp_path / "2.safetensors", dict(reversed(ARRAYS.items()))),
        write(tmp_path / "3.safetensors", {"w": ARRAYS["w"], **dict(sorted(ARRAYS.items()))}),
    ]
    first, *others = (cachec.open_weights(file, access=access) for file in files)
    given = asked(first, view, ask)
    for number, weights in enumerate(others):
        assert cache.call(asked, weights, view, ask)[1].hit
        oracle = cachec.Cache(tmp_path / f"oracle-{number}", log="off", mode="on")
        assert asked.__wrapped__ is not None
        fresh = oracle.stage(ignore=["view", "ask"])(asked.__wrapped__)
        assert fresh(weights, view, ask) == given


def test_other_bytes_are_another_result(cache, tmp_path):
    """The neighbour: all that a stream hands over is read."""

    @cache.stage
    def total(weights: WeightSet) -> float:
        return float(sum(weight.read().sum() for weight in weights.stream()))

    one = cachec.open_weights(write(tmp_path / "1.safetensors", ARRAYS))
    other = cachec.open_weights(write(tmp_path / "2.safetensors", {**ARRAYS, "a": ARRAYS["a"] + 1}))
    assert total(one) + 8 == total(other)
    assert cache.call(total, one)[1].hit
    again = cachec.open_weights(write(tmp_path / "3.safetensors", {**ARRAYS, "a": ARRAYS["a"] + 2}))
    assert cache.call(total, again)[1].reason is Reason.WEIGHT_CONTENT_CHANGED


def test_outside_of_stages_both_are_told(tmp_path):
    file = write(tmp_path / "1.safetensors", ARRAYS)
    weights = cachec.open_weights(file)
    assert [weight.name for weight in weights.stream()] == list(ARRAYS)
    assert weights["b"].place().path == file
    assert weights["b"].extent().offset == weights["b"].place().offset


def test_a_file_that_a_stage_writes_of_weights_has_their_bytes(cache, tmp_path):
    """What copies bytes by itself does so in a stage too."""

    @cache.stage
    def saved(weights: WeightSet) -> cachec.File:
        with cachec.scratch() as folder:
            weights.save(folder / "s.safetensors")
            return cachec.File(folder / "s.safetensors")

    file = saved(cachec.open_weights(write(tmp_path / "1.safetensors", ARRAYS)))
    found = cachec.open_weights(file.path)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name].read(), array)
