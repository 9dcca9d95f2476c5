"""Weights over other weights: changed and new ones, adapters of one rank, and names that differ by a prefix."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachec
from cachec.base.hashing import FileDigests, digest_bytes
from cachec.errors import HandleClosed, LinkError, UnknownWeight, UsageError, WeightError
from cachec.model import WeightSpec
from cachec.recording import ReadRecorder
from cachec.weights import WeightSet, from_arrays, open_weights
from cachec.weights.layout import Layout
from cachec.weights.manifest import renaming_hint
from cachec.weights.weight import Weight


@pytest.fixture
def adapter(tmp_path: Path, make: Any) -> Path:
    """w changed, and two new ones."""
    path: Path = make.write(
        tmp_path / "adapter.safetensors",
        {"w": make.ramp(4, 8, start=500), "w.lora_A": make.ramp(2, 8), "w.lora_B": make.ramp(4, 2)},
    )
    return path


def test_changed_and_new_weights_come_from_the_other_set(model: Path, adapter: Path, make: Any) -> None:
    base, over = open_weights(model), open_weights(adapter)
    both = base.overlay(over)
    assert list(both) == ["b", "scale", "w", "w.lora_A", "w.lora_B"]
    for name, weight in both.items():
        origin = over if name in over else base
        assert weight.name == name
        assert weight.place() == origin[name].place()
        assert weight.spec == origin[name].spec
        np.testing.assert_array_equal(weight.read(), origin[name].read())
        assert weight.digest() == origin[name].digest()
    assert base["w"].digest() != over["w"].digest()
    assert both.select(["w"]).rename({"w": "x"})["x"].place() == over["w"].place()
    again = both.overlay({"b": make.ramp(8, start=1)})
    np.testing.assert_array_equal(again["b"].read(), make.ramp(8, start=1))
    assert again["w"].place() == over["w"].place()


def test_mappings_of_anything_that_is_a_weight(model: Path, make: Any) -> None:
    base = open_weights(model)
    spec = WeightSpec(name="c", dtype="uint8", shape=(3,), nbytes=3)
    both = base.overlay({"b": make.ramp(8), "scale": base["scale"], "a": base["w"], "c": (b"xyz", spec)})
    np.testing.assert_array_equal(both["b"].read(), make.ramp(8))
    assert both["a"].place() == both["w"].place() == base["w"].place()
    assert both["c"].read().tobytes() == b"xyz"
    assert base.overlay({}).spec_digest == base.spec_digest
    with pytest.raises(UsageError, match="expected a weight set or a mapping name -> weight, found list"):
        base.overlay([base["w"]])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="tied= goes with a mapping"):
        base.overlay(base, tied=[("w", "b")])


def test_a_changed_weight_has_the_same_spec_unless_said_otherwise(model: Path, make: Any) -> None:
    base = open_weights(model)
    for array, found in ((make.ramp(8, 4), "float32 [8, 4]"), (np.zeros((4, 8), "i4"), "int32 [4, 8]")):
        with pytest.raises(WeightError, match=re.escape(f"'w' expected float32 [4, 8], found {found}; pass replace=")):
            base.overlay({"w": array})
        both = base.overlay({"w": array}, replace=True)
        np.testing.assert_array_equal(both["w"].read(), array)
        assert both.spec_digest != base.spec_digest
    whole = from_arrays({"w": make.ramp(8, 8)})
    with pytest.raises(WeightError, match=r"shard of 2 on axis 0, found float32 \[4, 8\]; pass replace"):
        whole.shard({"w": 0}, 1, 2).overlay({"w": make.ramp(4, 8)})


def test_ties(make: Any) -> None:
    base = from_arrays({"a": make.ramp(4), "b": make.ramp(4), "c": make.ramp(2)}, tied=[("a", "b")])
    assert base.overlay({"c": make.ramp(2, start=1)}).specs["b"].alias == "a"
    for other in ({"a": make.ramp(4)}, {"a": make.ramp(4), "b": make.ramp(4)}):
        for replace in (False, True):
            with pytest.raises(WeightError, match="'a' is tied: 'a', 'b' are one weight; overlay all"):
                base.overlay(other, replace=replace)
    new = make.ramp(4, start=3)
    both = base.overlay({"a": new, "b": new}, tied=[("a", "b")])
    assert both.spec_digest == base.spec_digest
    untied = base.select(exclude="b").overlay({"b": base["b"]})
    assert untied.specs["a"].alias is None
    added = base.overlay({"x": new, "y": new}, tied=[("x", "y")])
    assert (added.specs["y"].alias, added.specs["b"].alias) == ("x", "a")


def test_ranks(make: Any) -> None:
    whole = from_arrays({"w": make.ramp(8, 2)})
    owned = [whole.shard({"w": 0}, rank, 2) for rank in range(2)]
    assert owned[1].overlay({"n": make.ramp(1)}).rank == 1
    assert owned[1].overlay(owned[1]).rank == 1
    with pytest.raises(UsageError, match="weights of rank 0 over those of rank 1"):
        owned[1].overlay(owned[0])
    with pytest.raises(UsageError, match="weights of rank 0 over those of no rank"):
        whole.overlay(owned[0])


def test_the_revision_sees_both(model: Path, adapter: Path, make: Any) -> None:
    base, over = open_weights(model), open_weights(adapter)
    assert base.overlay(over).revision == open_weights(model).overlay(open_weights(adapter)).revision
    assert base.overlay(over).revision not in {base.revision, over.revision, base.overlay({}).revision}
    before = base.overlay(over).revision
    make.write(adapter, {"w": make.ramp(4, 8, start=501), "w.lora_A": make.ramp(2, 8), "w.lora_B": make.ramp(4, 2)})
    assert open_weights(model).overlay(open_weights(adapter)).revision != before


def test_release_and_changes(model: Path, adapter: Path) -> None:
    base, over = open_weights(model), open_weights(adapter)
    with base.overlay(over) as both:
        kept = both["w"].read()
        assert both.changed() is None
    for weight in (both["w"], both["b"], base["b"], over["w"]):
        with pytest.raises(HandleClosed, match="released"):
            weight.read()
    assert kept[0, 0] == 500
    both = open_weights(model).overlay(open_weights(adapter))
    both["w"].read()
    adapter.unlink()
    assert both.changed() == str(adapter)


def test_opening_and_overlaying_makes_no_handle_for_the_base(
    model: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, over = open_weights(model), open_weights(adapter)
    made: list[str] = []
    real = Weight.__init__

    def counting(self: Weight, name: str, *rest: Any) -> None:
        made.append(name)
        real(self, name, *rest)

    monkeypatch.setattr(Weight, "__init__", counting)
    both = base.overlay(over)
    assert made == []
    both["b"]
    assert made == ["b"]
    assert base.overlay(over).layout is both.layout, "the same files again compute nothing"
    assert isinstance(both.layout, Layout)


def test_in_a_stage_each_weight_counts_by_itself(model: Path, adapter: Path) -> None:
    base = open_weights(model)
    recorder = ReadRecorder("fold")
    guarded = base.guard("base", recorder, FileDigests())
    over = open_weights(adapter).guard("adapter", recorder, FileDigests())
    both = guarded.overlay(over)
    assert both.whole_origin() is None
    assert [both.origin(name) for name in ("b", "w")] == [("base", "b"), ("adapter", "w")]
    both["w"].read()
    assert [(read.where, read.name) for read in recorder.reads()] == [("adapter", "w")]
    given = base.overlay(open_weights(adapter)).guard("weights", recorder, FileDigests())
    assert given.whole_origin() == "weights"
    given["b"].read()
    assert ("weights", "b", base["b"].digest()) in [(read.where, read.name, read.digest) for read in recorder.reads()]


def test_a_program_is_shared_by_all_adapters_of_its_shape(cache: cachec.Cache, model: Path, make: Any) -> None:
    base = open_weights(model)

    @cache.stage
    def lower(weights: cachec.WeightSet) -> str:
        return ",".join(weights)

    assert lower(base.overlay({"w.lora_A": make.ramp(2, 8)})) == "b,scale,w,w.lora_A"
    assert cache.call(lower, base.overlay({"w.lora_A": make.ramp(2, 8, start=5)}))[1].hit
    assert not cache.call(lower, base.overlay({"w.lora_A": make.ramp(4, 8)}))[1].hit


# --- adapters of one rank


def lora(make: Any, rank: int) -> dict[str, Any]:
    return {
        "l.lora_A.weight": make.ramp(rank, 6, start=rank),
        "l.lora_B.weight": make.ramp(5, rank, start=10 * rank),
        "l.bias": make.ramp(5),
    }


@pytest.mark.parametrize("kind", ["memory", "mmap", "read"])
def test_adapters_of_any_rank_share_one_spec(tmp_path: Path, make: Any, kind: Any) -> None:
    sets = {}
    for rank in (2, 3, 8):
        arrays = lora(make, rank)
        path = make.write(tmp_path / f"{rank}.safetensors", arrays)
        weights = from_arrays(arrays) if kind == "memory" else open_weights(path, access=kind)
        padded = sets[rank] = weights.pad_rank(8)
        a, b = padded["l.lora_A.weight"].read(), padded["l.lora_B.weight"].read()
        assert (a.shape, b.shape) == ((8, 6), (5, 8))
        np.testing.assert_array_equal(a[:rank], arrays["l.lora_A.weight"])
        np.testing.assert_array_equal(b[:, :rank], arrays["l.lora_B.weight"])
        assert not a[rank:].any()
        assert not b[:, rank:].any()
        np.testing.assert_allclose(b @ a, arrays["l.lora_B.weight"] @ arrays["l.lora_A.weight"], rtol=1e-5)
        assert padded["l.lora_A.weight"].digest() == digest_bytes(a.tobytes())
        assert padded["l.bias"].place() == weights["l.bias"].place()
        for weight in padded.stream():
            np.testing.assert_array_equal(weight.read(), padded[weight.name].read())
    assert len({padded.spec_digest for padded in sets.values()}) == 1
    assert sets[8]["l.lora_A.weight"].place() == weights["l.lora_A.weight"].place(), "nothing to pad: in place"


def test_padding_that_can_not_be(make: Any) -> None:
    weights = from_arrays(lora(make, 4))
    assert weights.pad_rank(4) is weights
    assert weights.pad_rank(6, {"l.bias": 0})["l.bias"].shape == (6,)
    assert weights.pad_rank(8, {re.compile(r".*_A\..*"): 0})["l.lora_B.weight"].shape == (5, 4)
    for rank, patterns, error, message in (
        (3, None, UsageError, "'l.lora_A.weight' float32 [4, 6]: expected a rank of at most 3 on axis 0, found 4"),
        (0, None, UsageError, "expected a rank from 1, found 0"),
        (True, None, UsageError, "expected a rank from 1, found True"),
        (8, {"q*": 0}, UnknownWeight, "pad_rank: no weight among 3 matches 'q*'"),
        (8, {"l.bias": 1}, UsageError, "'l.bias' has 1 dimensions"),
    ):
        with pytest.raises(error, match=re.escape(message)):
            weights.pad_rank(rank, patterns)


def test_one_compile_for_adapters_of_every_rank(cache: cachec.Cache, model: Path, make: Any) -> None:
    base = open_weights(model)

    @cache.stage
    def lower(weights: cachec.WeightSet) -> str:
        return repr([spec.shape for spec in weights.specs.values()])

    outcomes = [
        cache.call(lower, base.overlay(from_arrays(lora(make, rank)).pad_rank(8)))[1].hit for rank in (2, 3, 8, 4)
    ]
    assert outcomes == [False, True, True, True]


# --- did you mean


PREFIX = "base_model.model."


def test_a_common_prefix_is_suggested(make: Any) -> None:
    weights = from_arrays({f"{PREFIX}{name}": make.ramp(2) for name in ("a.w", "a.b", "c")})
    hint = re.escape(f"; did you mean weights.rename(lambda n: n.removeprefix('{PREFIX}'))?") + "$"
    for use in (
        lambda: weights.select(["a.w", "c"]),
        lambda: weights.select(exclude=["a.w", "c"]),
        lambda: weights.rename({"a.w": "x", "c": "y"}),
        lambda: weights["c"],
        lambda: weights.select("c"),
    ):
        with pytest.raises(UnknownWeight, match=hint):
            use()
    fits = weights.rename(lambda n: n.removeprefix(PREFIX))
    assert list(fits.select(["a.w", "c"])) == ["a.w", "c"]
    with pytest.raises(LinkError, match=hint):
        fits.manifest.check(weights.specs)
    back = re.escape(f"; did you mean weights.rename(lambda n: '{PREFIX}' + n)?") + "$"
    with pytest.raises(LinkError, match=back):
        weights.manifest.check(fits.specs)
    with pytest.raises(UnknownWeight, match=back):
        fits.select([f"{PREFIX}a.w", f"{PREFIX}c"])


def test_no_prefix_is_suggested_where_some_name_does_not_fit(make: Any) -> None:
    mixed = from_arrays({f"{PREFIX}a": make.ramp(2), f"{PREFIX}b": make.ramp(2), "c": make.ramp(2)})
    for use in (
        lambda: mixed.select(["a", "x"]),
        lambda: mixed["a"],
        lambda: WeightSet.manifest.fget(from_arrays({"a": make.ramp(2), "z": make.ramp(2)})).check(mixed.specs),  # type: ignore[attr-defined]
    ):
        with pytest.raises((UnknownWeight, LinkError)) as caught:
            use()
        assert "rename(" not in str(caught.value)
    assert renaming_hint([], ["a"]) == renaming_hint(["a"], []) == ""
    assert "removeprefix('p.')" in renaming_hint(["a", "b"], ["p.a", "p.b", "q.a"])
    assert "removeprefix('q.r.')" in renaming_hint(["a", "b"], ["p.a", "q.r.a", "q.r.b"])
