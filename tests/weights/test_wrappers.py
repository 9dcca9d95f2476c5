"""Weights inside a stage: every exposure is recorded first, in every stage around it, and ends with the stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachec.base.hashing import FileDigests
from cachec.errors import HandleClosed, UsageError, WeightReadError, WeightsChanged
from cachec.recording import ReadRecorder
from cachec.weights import Weight, WeightSet, from_arrays, open_weights


def _reads(recorder: ReadRecorder) -> list[tuple[str, str, str]]:
    assert all(read.kind == "weight" for read in recorder.reads())
    return [(read.where, read.name, read.digest) for read in recorder.reads()]


USES: dict[str, Any] = {
    "read": Weight.read,
    "raw": Weight.raw,
    "digest": Weight.digest,
    "digest with a memory": lambda weight: weight.digest(FileDigests()),
    "private": Weight.private,
    "place": Weight.place,
    "jax": Weight.jax,
    "dlpack": lambda weight: weight.__dlpack__(),
    "from_dlpack": np.from_dlpack,
    "asarray": np.asarray,
    "array": lambda weight: weight.__array__(),
    "buffer": lambda weight: weight.__buffer__(0),
    "float": lambda weight: float(np.sum(weight)),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize("memory", [False, True])
def test_every_exposure_is_recorded(model: Path, make: Any, use: Any, memory: bool) -> None:
    weights = from_arrays({"w": make.ramp(4, 8), "b": make.ramp(8)}) if memory else open_weights(model)
    recorder = ReadRecorder("fold")
    use(weights.guard("weights", recorder, FileDigests())["w"])
    assert _reads(recorder) == [("weights", "w", weights["w"].digest())]


def test_what_exposes_no_byte_is_not_recorded(model: Path) -> None:
    recorder = ReadRecorder("lower")
    guarded = open_weights(model).guard("weights", recorder, FileDigests())
    for name, weight in guarded.items():
        assert (weight.name, weight.spec.dtype, repr(weight)) == (name, "float32", repr(weight))
    _ = guarded.specs, guarded.spec_digest, guarded.manifest, guarded.nbytes, guarded.rank, repr(guarded), len(guarded)
    guarded.select("w").rename({"w": "x"}).placeholders()
    assert guarded.changed() is None
    assert recorder.reads() == ()


def test_names_are_those_of_the_guarded_set(model: Path) -> None:
    weights = open_weights(model).rename({"w": "layer.w"}).select("layer.*")
    recorder = ReadRecorder("fold")
    guarded = weights.guard("options['a']", recorder, FileDigests())
    derived = guarded.rename({"layer.w": "x"}).rename(str.upper)
    assert derived["X"].read().sum() == 496
    assert _reads(recorder) == [("options['a']", "layer.w", open_weights(model)["w"].digest())]
    assert derived.origin("X") == ("options['a']", "layer.w")


def test_origins(model: Path) -> None:
    weights = open_weights(model)
    guarded = weights.guard("weights", ReadRecorder("s"), FileDigests())
    assert guarded.whole_origin() == "weights"
    assert guarded.select("*").whole_origin() == "weights"
    assert guarded.select("w").whole_origin() is None
    assert guarded.rename({"w": "b", "b": "w"}).whole_origin() is None
    assert guarded.rename({"w": "b", "b": "w"}).origin("b") == ("weights", "w")
    assert guarded.select("w").origin("w") == ("weights", "w")
    assert weights.origin("w") is None
    assert weights.whole_origin() is None
    assert guarded.placeholders().origin("w") is None
    mixed = WeightSet.from_weights({"x": guarded["w"], "y": from_arrays({"m": np.ones(1)})["m"]})
    assert mixed.origin("x") == ("weights", "w")
    assert mixed.origin("y") is None
    with pytest.raises(KeyError):
        guarded.origin("nope")


def test_a_closed_guard(model: Path) -> None:
    weights = open_weights(model)
    recorder = ReadRecorder("fold")
    guarded = weights.guard("weights", recorder, FileDigests())
    array, kept, part = guarded["w"].read(), guarded["b"], guarded.rename({"b": "c"})
    guarded.close_guard()
    for use in (kept.read, kept.digest, kept.raw, kept.private, kept.place, guarded["w"].read, part["c"].read):
        with pytest.raises(HandleClosed, match=r"weight '(w|b)' of 'weights': stage 'fold' has returned"):
            use()
    assert array.sum() == 496
    assert [name for _, name, _ in _reads(recorder)] == ["w"]
    assert weights["w"].read().sum() == 496
    assert guarded.specs == weights.specs
    with pytest.raises(UsageError):
        weights.close_guard()


def test_a_stage_can_release_only_its_own_handles(model: Path) -> None:
    weights = open_weights(model)
    with weights.guard("weights", ReadRecorder("s"), FileDigests()) as guarded:
        guarded["w"].read()
    with pytest.raises(HandleClosed):
        guarded["w"].read()
    assert weights["w"].read().sum() == 496


@pytest.mark.parametrize("use", [Weight.read, Weight.digest, Weight.private])
def test_a_nested_stage_records_in_both(model: Path, use: Any) -> None:
    outer, inner = ReadRecorder("outer"), ReadRecorder("inner")
    given = open_weights(model).guard("w_outer", outer, FileDigests())
    nested = given.select("w").rename({"w": "x"}).guard("w_inner", inner, FileDigests())
    use(nested["x"])
    digest = open_weights(model)["w"].digest()
    assert _reads(inner) == [("w_inner", "x", digest)]
    assert _reads(outer) == [("w_outer", "w", digest)]
    assert nested.origin("x") == ("w_inner", "x")
    nested.close_guard()
    assert given["w"].read().sum() == 496
    given.close_guard()
    again = given.guard("later", ReadRecorder("late"), FileDigests())
    with pytest.raises(HandleClosed, match="'outer'"):
        again["w"].read()


def test_changing_memory_is_seen_as_a_contradiction() -> None:
    array = np.zeros(3)
    recorder = ReadRecorder("s")
    guarded = from_arrays({"a": array}).guard("weights", recorder, FileDigests())
    guarded["a"].read()
    guarded["a"].read()
    assert recorder.contradictions() == ()
    array[0] = 1
    guarded["a"].read()
    assert [read.name for read in recorder.contradictions()] == ["a"]


def test_a_changed_file_inside_a_stage(model: Path) -> None:
    recorder = ReadRecorder("s")
    weights = open_weights(model)
    guarded = weights.guard("weights", recorder, FileDigests())
    guarded["b"].read()
    model.touch()
    with pytest.raises(WeightsChanged):
        guarded["w"].read()
    assert [name for _, name, _ in _reads(recorder)] == ["b"]
    assert guarded.changed() == weights.changed() == str(model)


def test_placeholders_in_a_stage_name_it(model: Path) -> None:
    recorder = ReadRecorder("lower")
    weights = open_weights(model)
    with pytest.raises(WeightReadError, match="stage 'lower'"):
        weights.guard("weights", recorder, FileDigests()).placeholders()["w"].read()
    with pytest.raises(WeightReadError):
        weights.placeholders().guard("weights", recorder, FileDigests())["w"].read()
    assert recorder.reads() == ()


def test_the_revision_is_no_business_of_a_stage(model: Path) -> None:
    with pytest.raises(WeightReadError, match="revision"):
        _ = open_weights(model).guard("weights", ReadRecorder("s"), FileDigests()).revision


def test_unguarded_gives_back_the_callers_weights(model: Path) -> None:
    weights = open_weights(model)
    recorder = ReadRecorder("s")
    guarded = weights.guard("weights", recorder, FileDigests())
    made = from_arrays({"m": np.ones(2)})
    sets = {
        "part": guarded.select(["w", "b"]).rename({"w": "x"}),
        "mixed": WeightSet.from_weights({"x": guarded["w"], "y": made["m"]}),
    }
    guarded.close_guard()
    for kept in sets.values():
        back = kept.unguard({"weights": weights})
        assert back.spec_digest == kept.spec_digest
        assert back["x"].read().sum() == 496
        assert back.origin("x") is None
    assert recorder.reads() == ()
    assert made.unguard({"weights": weights}) is made
    other = sets["part"].unguard({"elsewhere": weights})
    with pytest.raises(HandleClosed):
        other["x"].read()
