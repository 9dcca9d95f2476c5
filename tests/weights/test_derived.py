"""Sets that a stage derives: only what it made is stored, name by name, one tensor in memory at a time."""

from __future__ import annotations

import gc
import os
import re
import struct
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachec
from cachec import Reason, events
from cachec.base.hashing import digest_bytes
from cachec.errors import HandleClosed, UnknownWeight, UsageError, WeightError
from cachec.weights import WeightSet, from_arrays, open_weights
from cachec.weights.overlay import ComputedWeight


def quantized(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.round(array / 4).astype("i1")


def objects(cache: cachec.Cache) -> dict[str, int]:
    """The files of the store and their sizes."""
    return {path.name: path.stat().st_size for path in (cache.dir / "objects").rglob("*") if path.is_file()}


# --- outside a stage


def test_made_weights_are_computed_when_looked_at(model: Path, make: Any) -> None:
    base = open_weights(model)
    calls: list[str] = []

    def twice(weight: cachec.Weight) -> np.ndarray[Any, Any]:
        calls.append(weight.name)
        return weight.read() * 2

    made = base.derive(
        {
            "w": twice,
            "w.q": ComputedWeight("int8", (4, 8), lambda weights: quantized(weights["w"].read())),
            "s": ComputedWeight("float32", (), _sum),
        }
    )
    assert list(made) == ["b", "s", "scale", "w", "w.q"]
    assert made.specs["w.q"].nbytes == 32
    assert calls == []
    np.testing.assert_array_equal(made["w"].read(), make.ramp(4, 8) * 2)
    np.testing.assert_array_equal(made["w.q"].read(), quantized(make.ramp(4, 8)))
    assert made["s"].read() == 496
    assert calls == ["w"]
    made["w"].read()
    assert calls == ["w", "w"], "nothing is kept"
    assert made["w"].digest() == digest_bytes((make.ramp(4, 8) * 2).tobytes())
    assert made["b"].place() == base["b"].place()
    assert made["w"].place() is None
    assert not made["w"].read().flags.writeable
    assert made.shard({"w": 0, "w.q": 1}, 1, 2)["w.q"].read().tolist() == quantized(make.ramp(4, 8))[:, 4:].tolist()
    assert made.shard({"w": 0}, 1, 2)["w"].read().tolist() == (make.ramp(4, 8) * 2)[2:].tolist()
    assert [weight.read().tobytes() for weight in made.stream()]


def _sum(weights: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(weights["w"].read().sum())


def test_results_in_any_memory_order_and_of_any_library(model: Path, make: Any) -> None:
    jnp = pytest.importorskip("jax.numpy")
    base = open_weights(model)
    made = base.derive(
        {
            "t": ComputedWeight("float32", (8, 4), lambda weights: weights["w"].read().T),
            "b": lambda weight: jnp.exp(weight.jax() * 0),
        }
    )
    np.testing.assert_array_equal(made["t"].read(), make.ramp(4, 8).T)
    np.testing.assert_array_equal(made["b"].read(), np.ones(8, "f4"))


def test_what_is_refused(model: Path) -> None:
    base = open_weights(model)
    wrong = base.derive({"w": lambda weight: weight.read()[:2], "b": lambda weight: weight.read().astype("f8")})
    with pytest.raises(
        WeightError, match=re.escape("derived weight 'w': expected float32 [4, 8], found float32 [2, 8]")
    ):
        wrong["w"].read()
    with pytest.raises(
        WeightError, match=r"expected float32 \[8\], found float64 \[8\]; state what is returned: ComputedWeight"
    ):
        wrong["b"].digest()
    with pytest.raises(UnknownWeight, match="no weight 'q'"):
        base.derive({"q": lambda weight: weight.read()})
    with pytest.raises(
        UsageError, match=r"'w' expected ComputedWeight\(dtype, shape, function\) or a function, found 3"
    ):
        base.derive({"w": 3})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="expected a shape of integers from 0"):
        base.derive({"w": ComputedWeight("int8", (-1,), _sum)})
    with pytest.raises(UsageError, match="object"):
        base.derive({"w": ComputedWeight("object", (1,), _sum)})
    tied = open_weights(model).rename({"w": "x"}).overlay({"y": open_weights(model)["w"]})
    both = WeightSet.from_weights(dict(tied), tied=[("x", "y")])
    with pytest.raises(WeightError, match="'x' is tied"):
        both.derive({"x": lambda weight: weight.read()})
    assert both.derive({n: lambda weight: weight.read() for n in "xy"}, tied=[("x", "y")]).specs["y"].alias == "x"
    made = base.derive({"w": lambda weight: weight.read()})
    made.release()
    for weights in (made, base):
        with pytest.raises(HandleClosed):
            weights["w"].read()


# --- in a stage


@pytest.fixture
def two_hundred(tmp_path: Path, make: Any) -> Any:
    """Makes checkpoints of 200 tensors; ``starts`` changes values by name."""

    def make_one(file: str, **starts: float) -> WeightSet:
        arrays = {f"t{i:03d}": make.ramp(64, 16, start=starts.get(f"t{i:03d}", i)) for i in range(200)}
        return open_weights(make.write(tmp_path / file, arrays))

    return make_one


@pytest.mark.parametrize("how", ["overlay", "derive", "from_weights"])
def test_one_of_two_hundred_writes_that_one_and_shares_the_rest(
    cache: cachec.Cache, two_hundred: Any, make: Any, how: str
) -> None:
    @cache.stage
    def quantize(weights: cachec.WeightSet, how: str) -> cachec.WeightSet:
        if how == "derive":
            return weights.derive(
                {"t007": ComputedWeight("int8", (64, 16), lambda all_: quantized(all_["t007"].read()))}
            )
        new = {"t007": quantized(weights["t007"].read())}
        if how == "overlay":
            return weights.overlay(new, replace=True)
        return WeightSet.from_weights({**weights, **from_arrays(new)})

    weights = two_hundred("1.safetensors")
    cache.call(quantize, two_hundred("0.safetensors", t007=1), how)
    before = objects(cache)
    result, outcome = cache.call(quantize, weights, how)
    assert outcome.stored
    written = {name: size for name, size in objects(cache).items() if name not in before}
    digest = digest_bytes(quantized(make.ramp(64, 16, start=7)).tobytes())
    assert written == {digest: 64 * 16}
    # Other bytes where the stage did not look: those come from the caller, what it made from the store.
    other = two_hundred("2.safetensors", t001=-5, t100=-7)
    assert other.spec_digest == weights.spec_digest
    again, outcome = cache.call(quantize, other, how)
    assert outcome.hit
    for given, found in ((weights, result), (other, again)):
        for name, weight in found.items():
            if name == "t007":
                assert weight.dtype == "int8"
                np.testing.assert_array_equal(weight.read(), quantized(make.ramp(64, 16, start=7)))
                place = weight.place()
                assert place is not None
                assert place.path.is_relative_to(cache.dir)
            else:
                assert weight.place() == given[name].place()
                assert weight.digest() == given[name].digest()
        assert found.spec_digest == result.spec_digest
    # Other bytes where it looked: another result.
    _, outcome = cache.call(quantize, two_hundred("3.safetensors", t007=-50), how)
    assert outcome.reason is Reason.WEIGHT_CONTENT_CHANGED
    assert "t007" in outcome.detail


def test_what_is_read_when_it_is_stored_counts(cache: cachec.Cache, two_hundred: Any) -> None:
    """A derived weight is made after the stage's function returned: its reads must be in the trace all the same."""

    @cache.stage
    def scale(weights: cachec.WeightSet) -> cachec.WeightSet:
        return weights.derive({"t000": lambda weight: weight.read() * weights["t001"].read()[0, 1]})

    first = scale(two_hundred("1.safetensors"))["t000"].read().copy()
    assert cache.call(scale, two_hundred("2.safetensors", t002=5))[1].hit
    second, outcome = cache.call(scale, two_hundred("3.safetensors", t001=9))
    assert outcome.reason is Reason.WEIGHT_CONTENT_CHANGED
    assert not np.array_equal(first, second["t000"].read())
    assert cache.call(scale, two_hundred("4.safetensors", t000=9))[1].reason is Reason.WEIGHT_CONTENT_CHANGED


@pytest.mark.filterwarnings("ignore::cachec.CachecWarning")
def test_files_that_are_read_when_it_is_stored_count(cache: cachec.Cache, model: Path, tmp_path: Path) -> None:
    factor = tmp_path / "factor"
    factor.write_text("2")

    @cache.stage
    def scale(weights: cachec.WeightSet, path: str) -> cachec.WeightSet:
        def times(weight: cachec.Weight) -> Any:
            return weight.read() * float(Path(cachec.depends(path)).read_text())

        return weights.derive({"b": times})

    assert scale(open_weights(model), str(factor))["b"].read()[0] == 200
    assert cache.call(scale, open_weights(model), str(factor))[1].hit
    factor.write_text("3")
    assert scale(open_weights(model), str(factor))["b"].read()[0] == 300


@pytest.mark.parametrize("mode", ["read-only", "verify", "refresh", "off"])
@pytest.mark.sampled
def test_results_that_are_not_stored_can_be_used(cache: cachec.Cache, model: Path, make: Any, mode: str) -> None:
    def body(weights: cachec.WeightSet) -> cachec.WeightSet:
        # The function holds on to the stage's own handles, which close when the stage returns.
        return weights.derive({"b": lambda weight: weight.read() + weights["scale"].read()})

    weights = open_weights(model)
    cache.stage(name="add")(body)(weights)
    found = cachec.Cache(cache.dir, mode=mode, log="off").stage(name="add")(body)(weights)
    gc.collect()
    np.testing.assert_array_equal(found["b"].read(), make.ramp(8, start=107))
    assert found["w"].place() == weights["w"].place()


@pytest.mark.parametrize("mode", ["on", "read-only", "verify"])
def test_a_failing_function_fails_the_stage(cache: cachec.Cache, model: Path, mode: str) -> None:
    fails = [False]

    def body(weights: cachec.WeightSet) -> cachec.WeightSet:
        return weights.derive({"b": lambda weight: weight.read()[99:] if fails[0] else weight.read()})

    if mode == "verify":
        cache.stage(name="body", version="1")(body)(open_weights(model))
    fails[0] = True
    other = cachec.Cache(cache.dir, mode=mode, log="off")
    for number in (1, 2):
        with pytest.raises(WeightError, match="derived weight 'b'"):
            other.stage(name="body", version="1")(body)(open_weights(model))
        raised = [outcome for outcome in events.read_log(cache.dir) if outcome.reason is Reason.STAGE_RAISED]
        assert len(raised) == number
        assert raised[-1].detail.startswith("WeightError: derived weight 'b'")


def test_stages_after_one_another(cache: cachec.Cache, model: Path, make: Any) -> None:
    runs: list[str] = []

    @cache.stage
    def quantize(weights: cachec.WeightSet) -> cachec.WeightSet:
        return weights.derive({"w": ComputedWeight("int8", (4, 8), lambda all_: quantized(all_["w"].read()))})

    @cache.stage(ignore=["seen"])
    def total(weights: cachec.WeightSet, name: str, seen: list[str]) -> int:
        seen.append(name)
        return int(weights[name].read().sum())

    for _ in range(2):
        result = quantize(open_weights(model))
        assert total(result, "w", runs) == int(quantized(make.ramp(4, 8)).sum())
        assert total(result, "b", runs) == int(make.ramp(8, start=100).sum())
    assert runs == ["w", "b"]


def test_sets_made_from_nothing_and_mixed_ones(cache: cachec.Cache, model: Path, make: Any) -> None:
    @cache.stage
    def split(weights: cachec.WeightSet) -> dict[str, cachec.WeightSet]:
        made = from_arrays({"new": make_new()})
        return {"made": made, "whole": weights, "mixed": weights.select(["b"]).rename({"b": "x"}).overlay(made)}

    for _ in range(2):
        weights = open_weights(model)
        found = split(weights)
        assert found["whole"] is weights
        assert found["made"]["new"].read().tolist() == [1, 2]
        assert found["mixed"]["x"].place() == weights["b"].place()
        assert found["mixed"]["new"].digest() == found["made"]["new"].digest()


def make_new() -> np.ndarray[Any, Any]:
    return np.array([1, 2], "i4")


_STREAMED = """
    import re, sys, threading, time
    from pathlib import Path
    import numpy as np
    import cachec
    from cachec.weights import open_weights
    from cachec.weights.overlay import ComputedWeight

    def anonymous():
        return int(re.search(r"Anonymous:\\s+(\\d+)", Path("/proc/self/smaps_rollup").read_text())[1]) * 1024

    folder, path = sys.argv[1:]
    cache = cachec.Cache(folder, log="off")

    @cache.stage(version="1")
    def scale(weights: cachec.WeightSet) -> cachec.WeightSet:
        return weights.derive({name: lambda weight: weight.read() + np.float32(1) for name in weights})

    weights = open_weights(path)
    warm = weights.select(["small"])
    scale(warm)
    rest = weights.select(exclude=["small"])
    before, peak, over = anonymous(), 0, False

    def watch():
        global peak
        while not over:
            peak = max(peak, anonymous())
            time.sleep(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    result = scale(rest)
    over = True
    thread.join()
    assert all(float(weight.read()[-1]) == float(rest[name].read()[-1]) + 1 for name, weight in result.items())
    print(peak - before)
"""


def test_a_derived_set_is_stored_one_tensor_at_a_time(tmp_path: Path, make: Any) -> None:
    nbytes = 16 << 20
    arrays = {f"w{i}": make.ramp(nbytes // 4, start=i) for i in range(3)}
    path = make.write(tmp_path / "w.safetensors", {**arrays, "small": make.ramp(4)})
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(_STREAMED))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "cache"), str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    peak = int(done.stdout)
    assert nbytes * 0.9 < peak < 2.5 * nbytes, "of three tensors never all at once, and it was seen at all"


# --- what a hit costs


COMPOSED: dict[str, Any] = {
    "overlay": lambda weights: weights.overlay({"t007": np.ones(3, "f4")}, replace=True),
    "new": lambda weights: weights.overlay({"x": np.ones(3, "f4")}),
    "select": lambda weights: weights.select(exclude=["t00[3-9]"]),
    "rename": lambda weights: weights.rename(lambda name: f"m.{name}").overlay({"x": np.ones(3, "f4")}),
    "swapped": lambda weights: weights.rename({"t001": "t002", "t002": "t001"}),
    "from_weights": lambda weights: WeightSet.from_weights({**weights, **from_arrays({"t007": np.ones(3, "f4")})}),
    "twice": lambda weights: WeightSet.from_weights({f"{n}.{i}": w for n, w in weights.items() for i in range(2)}),
}


@pytest.mark.parametrize("compose", COMPOSED.values(), ids=COMPOSED.keys())
def test_a_hit_makes_no_handle_a_weight(
    cache: cachec.Cache, two_hundred: Any, compose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(weights: cachec.WeightSet) -> cachec.WeightSet:
        return compose(weights)

    stage = cache.stage(name="compose", version="1")(body)
    cache.call(stage, two_hundred("0.safetensors"))
    weights = two_hundred("1.safetensors", t002=-9)
    made: list[str] = []
    real = cachec.Weight.__init__

    def counting(self: cachec.Weight, name: str, *rest: Any) -> None:
        made.append(name)
        real(self, name, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(cachec.Weight, "__init__", counting)
        found, outcome = cache.call(stage, weights)
    assert outcome.hit
    assert len(made) < 10
    again, _ = cache.call(stage, weights)
    assert again.layout is found.layout, "nothing is computed a weight"
    expected = compose(weights)
    assert found.spec_digest == expected.spec_digest
    for name, weight in found.items():
        np.testing.assert_array_equal(weight.read(), expected[name].read())
        if expected[name].place() is not None:
            assert weight.place() == expected[name].place()
    found.release()
    with pytest.raises(HandleClosed):
        weights["t000"].read()


def test_hits_tell_sets_with_other_specs_apart(cache: cachec.Cache, two_hundred: Any) -> None:
    """What is remembered about one result must not be used for another one over the same weights."""

    @cache.stage
    def put(weights: cachec.WeightSet, name: str, rows: int) -> cachec.WeightSet:
        return weights.overlay({name: np.full(rows, rows, "f4")}, replace=True)

    weights = two_hundred("1.safetensors")
    calls = [("t007", 1), ("t007", 2), ("x", 1), ("y", 1)]
    for _ in range(2):
        for name, rows in calls:
            found = put(weights, name, rows)
            assert found.specs[name].shape == (rows,)
            assert found[name].read().tolist() == [rows] * rows
            assert len(found) == 200 + (name != "t007")


def test_ties_in_what_is_composed(cache: cachec.Cache, two_hundred: Any) -> None:
    @cache.stage
    def tie(weights: cachec.WeightSet, kind: str) -> cachec.WeightSet:
        part = weights.select(["t00?"])
        if kind == "callers":
            return WeightSet.from_weights(dict(part), tied=[("t001", "t002")])
        made = from_arrays({"x": np.ones(2, "f4"), "y": np.ones(2, "f4")}, tied=[("x", "y")])
        if kind == "made":
            return part.overlay(made)
        like = np.ones(weights["t001"].shape, "f4")
        return WeightSet.from_weights({**part, **from_arrays({"z": like})}, tied=[("z", "t001")])

    weights = two_hundred("1.safetensors")
    for kind, ties in (("callers", {"t001", "t002"}), ("made", {"x", "y"}), ("both", {"z", "t001"})):
        first, second = tie(weights, kind), tie(weights, kind)
        assert second.spec_digest == first.spec_digest
        assert {name for name, spec in second.specs.items() if spec.alias is not None} == ties


def test_parts_of_two_arguments(cache: cachec.Cache, two_hundred: Any) -> None:
    @cache.stage
    def merge(one: cachec.WeightSet, two: cachec.WeightSet) -> cachec.WeightSet:
        return WeightSet.from_weights({"a": one["t001"], "b": two["t001"]})

    one, two = two_hundred("1.safetensors"), two_hundred("2.safetensors", t001=50)
    for _ in range(2):
        found = merge(one, two)
        assert (found["a"].read()[0, 0], found["b"].read()[0, 0]) == (1, 50)


_SLICED = """
    import os, sys
    import cachec
    from cachec.weights import open_weights

    def private():
        with open("/proc/self/smaps_rollup") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")) << 10

    folder, path, how = sys.argv[1:]
    cache = cachec.Cache(folder, log="off")

    @cache.stage(version="1")
    def cut(weights: cachec.WeightSet, axis: int) -> cachec.WeightSet:
        return weights.shard({"w": axis}, 1, 2)

    weights = open_weights(path, access=how)
    cut(weights.select(["small"]).rename({"small": "w"}), 1)
    peak, real = 0, os.write

    def write(fd, data):
        global peak
        peak = max(peak, private())
        return real(fd, data)

    os.write = write
    before = private()
    axis = 1 if how == "mmap" else 0
    own = cut(weights.select(["w"]), axis)
    assert peak, "the peak is looked at while it is stored"
    print(peak - before, own["w"].digest(), weights.select(["w"]).shard({"w": axis}, 1, 2)["w"].digest())
"""


@pytest.mark.sampled
@pytest.mark.parametrize("access", ["mmap", "read"])
def test_a_slice_is_stored_in_pieces(tmp_path: Path, make: Any, access: str) -> None:
    """Of a strided slice, and of one that is read instead of mapped, never more than a piece is in memory."""
    path = make.write(tmp_path / "w.safetensors", {"small": make.ramp(4, 4), "w": make.ramp(2, 4)})
    data = path.read_bytes().replace(b"[2, 4]", b"[4096, 8192]").replace(b"[64, 96]", b"[64, %d]" % (64 + (128 << 20)))
    path.write_bytes(struct.pack("<Q", len(data) - 96 - 8) + data[8:])
    os.truncate(path, len(data) - 32 + (128 << 20))
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(_SLICED))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "cache"), str(path), access],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    peak, stored, wanted = done.stdout.split()
    assert stored == wanted
    assert int(peak) < 24 << 20, "the slice has 64 MiB"
