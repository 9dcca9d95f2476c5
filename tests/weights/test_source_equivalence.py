"""A stage can't distinguish where weights are, and its result stays as long as it can be read."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachec
from cachec.errors import HandleClosed
from cachec.maintain.maintainer import Maintainer
from cachec.maintain.sweep import GRACE_SECONDS, LONG_SECONDS
from cachec.model import Reason
from cachec.store.store import Store
from cachec.weights import Weight, WeightSet, from_arrays, open_weights
from cachec.weights.library.http_ranges import HttpResolver
from cachec.weights.library.resolver import Resolvers, resolve
from cachec.weights.library.stored_weights import WeightStore
from tests.weights.server import serving


def every_source(folder: Path, arrays: dict[str, Any]) -> dict[str, WeightSet]:
    """The same weights by every road."""
    path = folder / "m.safetensors"
    from_arrays(arrays).save(path)
    store = WeightStore(Store(folder / "owned"))
    store.add(from_arrays(arrays), "own")
    store.add(open_weights(path), "placed", own=False)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with serving(path.read_bytes()) as site:
        resolve(store, f"{site.base}/m.safetensors#sha256={digest}", "net", Resolvers({"http": HttpResolver()}))
    np.savez(folder / "m.npz", **arrays)
    prefixed = from_arrays({f"model.{name}": array for name, array in arrays.items()})
    first, *others = arrays
    return {
        "memory": from_arrays(arrays),
        "file": open_weights(path),
        "read": open_weights(path, access="read"),
        "npz": open_weights(folder / "m.npz"),
        "owned": store.open("own"),
        "in place": store.open("placed"),
        "resolved": store.open("net"),
        "renamed": prefixed.rename(lambda name: name.removeprefix("model.")),
        "overlay": from_arrays({**arrays, first: arrays[first] + 1}).overlay({first: arrays[first]}),
        "parts": WeightSet.from_weights({**open_weights(path).select(others), first: store.open("own")[first]}),
    }


def test_a_stage_gets_the_same_from_each(tmp_path: Path, cache: cachec.Cache, make: Any) -> None:
    @cache.stage
    def lower(weights: cachec.WeightSet) -> str:
        handles = [(type(weight), repr(weight), weight.spec) for weight in weights.values()]
        return f"{type(weights)} {weights!r} {weights.rank} {weights.spec_digest} {handles}"

    @cache.stage
    def look(weights: cachec.WeightSet) -> str:
        array = weights["w"].read()
        return f"{type(array)} {array.flags} {array.tolist()} {weights['w'].digest()} {weights['w'].raw().readonly}"

    @cache.stage
    def each(weights: cachec.WeightSet) -> list[float]:
        return [float(weight.read().sum()) for weight in weights.stream()]

    sources = every_source(tmp_path, {"w": make.ramp(4, 3), "b": make.ramp(5, start=9)})
    for stage in (lower, look, each):
        found = set()
        for number, (road, weights) in enumerate(sources.items()):
            _, outcome = cache.call(stage, weights)
            assert outcome.hit == (number > 0), f"{road}: {outcome}"
            found.add(str(sorted(stage.uncached(weights)) if stage is each else stage.uncached(weights)))
        assert len(found) == 1, "also where it runs again, it sees the same"


def test_other_values_are_other_values_by_every_road(tmp_path: Path, cache: cachec.Cache, make: Any) -> None:
    @cache.stage
    def look(weights: cachec.WeightSet) -> float:
        return float(weights["w"].read().sum())

    look(from_arrays({"w": make.ramp(4, 3), "b": make.ramp(5, start=9)}))
    (tmp_path / "b").mkdir()
    only_b = every_source(tmp_path / "b", {"w": make.ramp(4, 3), "b": make.ramp(5)})
    (tmp_path / "w").mkdir()
    only_w = every_source(tmp_path / "w", {"w": make.ramp(4, 3, start=1), "b": make.ramp(5, start=9)})
    for road, weights in only_b.items():
        assert cache.call(look, weights)[1].hit, road
    for number, (road, weights) in enumerate(only_w.items()):
        value, outcome = cache.call(look, weights)
        assert value == float(make.ramp(4, 3, start=1).sum()), road
        assert outcome.hit == (number > 0), road
        if number == 0:
            assert outcome.reason is Reason.WEIGHT_CONTENT_CHANGED


# --- how long what a stage made stays


def collect(folder: Path) -> None:
    store = Store(folder)
    later = time.time() + 2 * (GRACE_SECONDS + LONG_SECONDS)
    Maintainer(store, on_fault=lambda *fault: pytest.fail(str(fault)), clock=lambda: later).collect(limit=1)
    store.close()


def artifacts(folder: Path) -> list[Path]:
    return [path for path in (folder / "objects").rglob("*") if path.is_file()]


def derived(folder: Path, path: Path) -> WeightSet:
    cache = cachec.Cache(folder, log="off", mode="on")

    @cache.stage
    def twice(weights: cachec.WeightSet) -> cachec.WeightSet:
        return weights.derive({"w": lambda weight: weight.read() * 2})

    return twice(open_weights(path))


def in_the_middle(weights: WeightSet) -> Any:
    found = weights.stream()
    next(found)
    return found


HELD: dict[str, tuple[Callable[[WeightSet], Any], Callable[[Any], Any]]] = {
    "set": (lambda made: made, lambda held: held["w"].read()),
    "handle": (lambda made: made["w"], Weight.read),
    "selected": (lambda made: made.select("w"), lambda held: held["w"].read()),
    "renamed": (lambda made: made.rename({"w": "v"}), lambda held: held["v"].read()),
    "overlaid": (lambda made: made.overlay({"b": np.zeros(5, "f4")}), lambda held: held["w"].read()),
    "over": (lambda made: from_arrays({"w": np.zeros((4, 3), "f4")}).overlay(made), lambda held: held["w"].read()),
    "composed": (lambda made: WeightSet.from_weights({"v": made["w"]}), lambda held: held["v"].read()),
    "rows": (
        lambda made: [made.shard({"w": 0}, rank, 2) for rank in range(2)],
        lambda held: np.concatenate([each["w"].read() for each in held]),
    ),
    "columns": (
        lambda made: [made.shard({"w": 1}, rank, 3) for rank in range(3)],
        lambda held: np.concatenate([each["w"].read() for each in held], axis=1),
    ),
    "derived again": (lambda made: made.derive({"b": lambda weight: weight.read()}), lambda held: held["w"].read()),
    "stream": (in_the_middle, lambda held: next(held).read()),
    "array": (lambda made: made["w"].read(), lambda held: held),
    "torch": (lambda made: made["w"].torch(), lambda held: held.numpy()),
}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", HELD)
@pytest.mark.parametrize("hit", [False, True], ids=["miss", "hit"])
def test_what_holds_a_derived_weight_keeps_it(tmp_path: Path, make: Any, kind: str, hit: bool) -> None:
    hold, look = HELD[kind]
    path = make.write(tmp_path / "m.safetensors", {"b": make.ramp(5), "w": make.ramp(4, 3)})
    store = tmp_path / "store"
    if hit:
        derived(store, path)
    held = hold(derived(store, path))
    gc.collect()
    collect(store)
    np.testing.assert_array_equal(look(held), make.ramp(4, 3) * 2)
    del held
    gc.collect()
    collect(store)
    assert artifacts(store) == [], "and nothing more than that keeps it"


def test_a_copy_in_the_owned_store_needs_no_artifact(tmp_path: Path, make: Any) -> None:
    path = make.write(tmp_path / "m.safetensors", {"b": make.ramp(5), "w": make.ramp(4, 3)})
    made = derived(tmp_path / "store", path)
    owned = WeightStore(Store(tmp_path / "store"))
    owned.add(made, "doubled")
    made.release()
    with pytest.raises(HandleClosed):
        made["w"].read()
    del made
    gc.collect()
    collect(tmp_path / "store")
    assert {path.name for path in artifacts(tmp_path / "store")} == set(owned.find("doubled").digests.values())
    assert owned.verify("doubled") == ()
    np.testing.assert_array_equal(owned.open("doubled")["w"].read(), make.ramp(4, 3) * 2)
