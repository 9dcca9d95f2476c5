"""Weight sets: the caller's by reference, the stage's own with their bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachec import codecs
from cachec.base.hashing import FileDigests
from cachec.errors import StoreFault, UnknownWeight, UnstorableResult
from cachec.model import ArtifactRef, CallerSet, CallerWeight, Fault, Node, OwnedWeight, Weights, WeightSpec
from cachec.recording import ReadRecorder
from cachec.weights import WeightSet


def arrays(scale: float = 1.0) -> dict[str, Any]:
    return {
        "a": np.arange(6, dtype="f4").reshape(2, 3) * np.float32(scale),
        "b": np.arange(4, dtype="i2"),
        "t": np.arange(4, dtype="i2"),
    }


@pytest.fixture
def given(bench: Any) -> WeightSet:
    """What a stage gets for its argument ``weights``; afterwards the caller has other values under the same names."""
    recorder = ReadRecorder("stage")
    caller = WeightSet.from_arrays(arrays(), tied=[("b", "t")])
    bench.callers["weights"] = caller
    guarded: WeightSet = caller.guard("weights", recorder, FileDigests())
    bench.recorder = recorder
    return guarded


def test_a_whole_set_is_one_reference_and_comes_back_as_the_callers(bench: Any, given: WeightSet) -> None:
    node = bench.encode({"w": given, "n": 1})
    assert list(codecs.artifacts(node)) == []
    assert CallerSet("weights") in node.items
    fresh = bench.callers["weights"] = WeightSet.from_arrays(arrays(2.0), tied=[("b", "t")])
    assert bench.decode(node)["w"] is fresh
    assert bench.recorder.reads() == ()


def test_a_part_under_other_names_comes_back_as_the_callers(bench: Any, given: WeightSet) -> None:
    node = bench.encode(given.select(["a", "b"]).rename({"a": "x"}))
    assert node == Weights(("b", "x"), (CallerWeight("weights", "b"), CallerWeight("weights", "a")))
    bench.callers["weights"] = WeightSet.from_arrays(arrays(2.0), tied=[("b", "t")])
    back = bench.decode(node)
    assert sorted(back) == ["b", "x"]
    assert back["x"].read().tolist() == (arrays(2.0)["a"]).tolist()
    assert bench.recorder.reads() == (), "passing a weight on is no read"


def test_ties_come_back(bench: Any, given: WeightSet) -> None:
    part = given.select(["b", "t"]).rename({"b": "z"})
    back = bench.round_trip(part)
    assert {name: spec.alias for name, spec in back.specs.items()} == {
        name: spec.alias for name, spec in part.specs.items()
    }
    assert back.spec_digest == part.spec_digest
    assert part.specs["z"].alias == part.specs["t"].alias == "t"


def test_what_the_stage_made_is_stored_and_mapped(bench: Any, given: WeightSet) -> None:
    made = WeightSet.from_arrays({"new": np.full((3,), 7, "f8"), "empty": np.zeros((0, 2), "f4")})
    node = bench.encode(made)
    assert [ref.size for ref in codecs.artifacts(node)] == [0, 24]
    back = bench.decode(node)
    assert back["new"].read().tolist() == [7.0] * 3
    assert back["empty"].read().shape == (0, 2)
    assert not back["new"].read().flags.writeable
    assert back.spec_digest == made.spec_digest
    place = back["new"].place()
    assert place is not None
    assert place.path.parent == bench.store.root


def test_the_callers_and_the_stages_own_together(bench: Any, given: WeightSet) -> None:
    made = WeightSet.from_arrays({"own": np.ones(2, "f4")})
    both = WeightSet.from_weights({"kept": given["a"], "own": made["own"]})
    node = bench.encode(both)
    assert [type(item) for item in node.items] == [CallerWeight, OwnedWeight]
    bench.callers["weights"] = WeightSet.from_arrays(arrays(3.0), tied=[("b", "t")])
    back = bench.decode(node)
    assert back["kept"].read().tolist() == arrays(3.0)["a"].tolist()
    assert back["own"].read().tolist() == [1.0, 1.0]


def test_bf16_and_opened_files_are_stored_with_their_bytes(bench: Any, tmp_path: Path) -> None:
    import ml_dtypes
    from safetensors.numpy import save_file

    from cachec.weights import open_weights

    save_file({"a": np.arange(3, dtype="f4"), "b": np.zeros((2, 2), "i8")}, tmp_path / "w.safetensors")
    opened = open_weights(tmp_path / "w.safetensors")
    back = bench.round_trip(opened)
    assert back.spec_digest == opened.spec_digest
    for name in opened:
        assert back[name].read().tobytes() == opened[name].read().tobytes()
    half = WeightSet.from_arrays({"h": np.arange(3).astype(ml_dtypes.bfloat16)})
    assert bench.round_trip(half)["h"].read().dtype == ml_dtypes.bfloat16


def test_an_empty_set_comes_back(bench: Any) -> None:
    assert len(bench.round_trip(WeightSet.from_arrays({}))) == 0


def test_placeholders_of_no_argument_are_refused(bench: Any) -> None:
    made = WeightSet.from_arrays({"own": np.ones(2, "f4")}).placeholders("stage")
    with pytest.raises(UnstorableResult, match=r"^result\[0\]\['own'\] is a placeholder without bytes; return"):
        bench.encode([made])


def test_a_single_weight_is_refused_with_the_way_out(bench: Any, given: WeightSet) -> None:
    with pytest.raises(UnstorableResult, match=r"Weight; return the set, narrowed by weights\.select"):
        bench.encode(given["a"])


def test_encoding_works_after_the_handles_were_closed(bench: Any, given: WeightSet) -> None:
    part = given.select(["a"])
    given.close_guard()
    assert bench.encode(given) == CallerSet("weights")
    assert bench.encode(part) == Weights(("a",), (CallerWeight("weights", "a"),))


SPEC = WeightSpec(name="w", dtype="float32", shape=(2,), nbytes=8)


def owned(ref: ArtifactRef, **changes: Any) -> Node:
    fields = {"name": "w", "dtype": "float32", "shape": (2,), "nbytes": 8, **changes}
    return Weights(("w",), (OwnedWeight(WeightSpec(**fields), ref),))


def test_hostile_weight_rows_are_corrupt(bench: Any, given: WeightSet) -> None:
    ref = bench.store.add_bytes(bytes(8))
    assert bench.decode(owned(ref))["w"].read().tolist() == [0.0, 0.0]
    for node in (
        CallerSet("nowhere"),
        Weights(("x",), (CallerWeight("nowhere", "a"),)),
        Weights(("x",), (CallerWeight("weights", "gone"),)),
        Weights(("x", "x"), (CallerWeight("weights", "a"), CallerWeight("weights", "b"))),
        Weights(("x",), ()),
        Weights((), (), base="nowhere"),
        Weights((), (), ranked="nowhere"),
        Weights(("b",), (CallerWeight("weights", "a"),), base="weights"),
        Weights(("x",), (CallerWeight("weights", "a", "nobody"),)),
        Weights(("x", "y"), (CallerWeight("weights", "a", "x"), CallerWeight("weights", "b", "x"))),
        owned(ref, shape=(3,), nbytes=12),
        owned(ref, shape=(3,)),
        owned(ref, nbytes=4),
        owned(ref, shape=(-1, -2)),
        owned(ref, dtype="object"),
        owned(ref, dtype="float64"),
        owned(ref, name="other"),
        owned(ref, layout="tiled"),
        owned(ref, alias="nobody"),
    ):
        with pytest.raises(StoreFault) as caught:
            bench.decode(node)
        assert caught.value.fault is Fault.ROW_CORRUPT, node


def test_the_callers_own_error_is_not_taken_for_a_corrupt_row(bench: Any, given: WeightSet) -> None:
    with pytest.raises(UnknownWeight):
        bench.callers["weights"]["nothing"]
