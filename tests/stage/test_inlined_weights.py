"""Weights that a stage reads are inlined in its result, so a link accepts only these bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import cachec
from cachec import LinkError, Program, WeightSet
from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.programs.linker import link
from cachec.testing.fakes import FORMAT, ToyPlugin, compile_toy, to_toy
from cachec_mlir.text.alpha_renaming import alpha_manifest

W = np.arange(6, dtype="f4").reshape(2, 3)
X = np.ones(3, "f4")


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    class Installed:
        def find(self, name):
            assert name == "toy"
            return ToyPlugin()

    monkeypatch.setattr("cachec.programs.linker.installed_plugins", Installed)


def model(scale: float, **more: np.ndarray) -> WeightSet:
    return WeightSet.from_arrays({"w": W, "scale": np.array(scale, "f4"), **more})


def without_scale(weights: WeightSet, scale: float) -> Program:
    return to_toy(weights.select(exclude=["scale"]), scale)


class Stages:
    """The usual chain: a stage that reads ``scale``, one that compiles, one that compiles with the weights at hand."""

    def __init__(self, cache: cachec.Cache) -> None:
        self.ran: list[str] = []

        @cache.stage(ignore=["ran"])
        def lower(weights: WeightSet, ran: list[str]) -> Program:
            ran.append("lower")
            return without_scale(weights, float(weights["scale"].read()))

        @cache.stage(ignore=["ran"])
        def build(program: Program, ran: list[str]) -> cachec.File:
            ran.append("build")
            with cachec.scratch() as folder:
                return compile_toy(program, folder / "m")

        self._lower, self._build = lower, build

    def lower(self, weights: WeightSet) -> Program:
        return self._lower(weights, self.ran)

    def build(self, program: Program) -> cachec.File:
        return self._build(program, self.ran)


@pytest.fixture
def stages(cache):
    return Stages(cache)


def run(artifact, weights):
    return link(artifact, weights)(X).tolist()


def test_other_bytes_for_a_folded_weight_are_refused(stages):
    one, five = model(1), model(5)
    for _ in range(2):  # made, and from the store
        module = stages.build(stages.lower(one))
        assert run(module, one) == (W @ X).tolist()
        with pytest.raises(LinkError, match="'scale'"):
            link(module, five)
        with pytest.raises(LinkError, match="'scale'"):
            link(stages.lower(one), five)
    assert stages.ran == ["lower", "build"]
    assert run(stages.build(stages.lower(five)), five) == (5 * W @ X).tolist()


def test_weights_that_were_not_read_may_change(stages):
    """One module for every fine-tune: its neighbour, which has to hit and to link."""
    module = stages.build(stages.lower(model(1)))
    tuned = WeightSet.from_arrays({"w": W + 1, "scale": np.array(1, "f4")})
    assert run(stages.build(stages.lower(tuned)), tuned) == run(module, tuned) == ((W + 1) @ X).tolist()
    assert stages.ran == ["lower", "build"]


def test_a_weight_that_is_not_needed_any_more_may_be_left_out_or_stay(stages):
    one, five = model(1), model(5)
    module = stages.build(stages.lower(one))
    assert set(module.manifest.weights) == {"w"}
    assert run(module, one.select(exclude=["scale"])) == run(module, one)
    assert run(module, five.select(["w"])) == run(module, one)  # nothing is offered to compare with
    with pytest.raises(LinkError, match="extra 'other'"):
        link(module, model(1, other=W))


def test_a_weight_that_was_read_and_is_needed_still(cache):
    @cache.stage
    def lower(weights: WeightSet) -> Program:
        return to_toy(weights, float(weights["w"].read()[0, 1]))

    one, other = WeightSet.from_arrays({"w": W}), WeightSet.from_arrays({"w": W + 1})
    assert run(lower(one), one) == (W @ X).tolist()
    with pytest.raises(LinkError, match="'w'"):
        link(lower(one), other)
    with pytest.raises(LinkError, match="missing 'w'"):
        link(lower(one), one.select(exclude=["w"]))
    with pytest.raises(LinkError, match="dtype"):  # what differs more is told first
        link(lower(one), WeightSet.from_arrays({"w": W.astype("f8")}))


def test_early_cutoff_goes_on_and_each_call_knows_its_own_weights(cache):
    ran = []

    @cache.stage
    def lower(weights: WeightSet) -> Program:
        return to_toy(weights.select(["w"]), 1.0 if weights["scale"].read() > 0 else -1.0)

    @cache.stage(ignore=["ran"])
    def build(program: Program, ran: list[int]) -> cachec.File:
        ran.append(1)
        with cachec.scratch() as folder:
            (folder / "m").write_bytes(program.ir)
            return cachec.File(folder / "m", kind=FORMAT)

    one, five = model(1), model(5)
    first, second = build(lower(one), ran), build(lower(five), ran)
    assert ran == [1]
    for module, fits, other in ((first, one, five), (second, five, one)):
        assert run(module, fits) == (W @ X).tolist()
        with pytest.raises(LinkError, match="'scale'"):
            link(module, other)


def test_no_stage_sees_what_was_folded(cache, stages):
    """It is in no key."""

    @cache.stage
    def seen(program: Program, file: cachec.File) -> list[object]:
        return [dict(program.manifest.folded), dict(file.manifest.folded)]

    program = stages.lower(model(1))
    assert program.manifest.folded
    assert seen(program, stages.build(program)) == [{}, {}]


@pytest.mark.parametrize("mode", ["on", "read-only", "refresh", "verify"])
def test_results_that_are_not_stored_know_it_too(tmp_path, mode):
    stages = Stages(cachec.Cache(tmp_path / "cache", log="off", mode=mode))
    for _ in range(2):
        program = stages.lower(model(1))
        assert run(program, model(1)) == (W @ X).tolist()
        with pytest.raises(LinkError, match="'scale'"):
            link(program, model(5))


def test_a_store_that_fails_costs_the_entry_and_not_the_check(cache, stages, monkeypatch):
    def full(*_args, **_more):
        raise StoreFault(Fault.STORE_FULL, "disk full")

    monkeypatch.setattr(cache.store, "publish", full)
    program = stages.lower(model(1))
    with pytest.raises(LinkError, match="'scale'"):
        link(program, model(5))


def test_stages_within_stages(cache, stages):
    """What an inner stage read is known of the outer one's result, by names of both; also of weights opened inside."""

    @cache.stage(ignore=["stages"])
    def outer(weights: WeightSet, stages: Stages) -> cachec.File:
        return stages.build(stages.lower(weights.rename({"factor": "scale"})))

    @cache.stage(ignore=["stages"])
    def whole(scale: float, stages: Stages) -> Program:
        return stages.lower(model(scale))

    for _ in range(2):
        weights = model(1).rename({"scale": "factor"})
        module = outer(weights, stages)
        assert run(module, weights) == run(module, model(1)) == (W @ X).tolist()
        for other in (model(5).rename({"scale": "factor"}), model(5)):
            with pytest.raises(LinkError, match=r"'factor'|'scale'"):
                link(module, other)
        program = whole(1.0, stages)
        assert run(program, model(1)) == (W @ X).tolist()
        with pytest.raises(LinkError, match="'scale'"):
            link(program, model(5))


def test_a_program_given_on_in_a_stage_keeps_what_the_caller_knows(cache, stages):
    @cache.stage
    def same(program: Program) -> list[Program]:
        return [program]

    program = stages.lower(model(1))
    other = program.linked_as(program.manifest.bare().folding({"scale": ("5" * 64,)}))
    assert program.manifest.folded.keys() == {"scale"}
    for given in (program, other):  # one entry for both
        assert same(given)[0].manifest.folded == given.manifest.folded


def test_two_programs_that_saw_different_bytes_fit_no_weight(cache, stages):
    @cache.stage
    def both(one: Program, other: Program) -> cachec.File:
        with cachec.scratch() as folder:
            (folder / "m").write_bytes(one.ir)
            return cachec.File(folder / "m", kind=FORMAT)

    one, five = stages.lower(model(1)), stages.lower(model(5))
    assert run(both(one, one), model(1)) == (W @ X).tolist()
    mixed = both(one, five)
    for weights in (model(1), model(5)):
        with pytest.raises(LinkError, match="different contents"):
            link(mixed, weights)
    assert run(mixed, model(1).select(["w"])) == (W @ X).tolist()


def test_merged_manifests_that_disagree():
    base = model(1).manifest
    one, five = base.folding({"scale": ("1" * 64,)}), base.folding({"scale": ("5" * 64,), "w": ("0" * 64,)})
    assert one.merge(five).folded == {"scale": (), "w": ("0" * 64,)}
    assert one.merge(one).folded == one.folded
    assert one.merge(five) == base  # in no digest
    assert five.without("scale").folded == five.with_callers({"a": "b"}).folded == five.folded
    assert alpha_manifest(five, {"alpha.0": "w"}).folded == five.folded


def test_two_sets_with_one_name(cache):
    """Read from the teacher, linked with the student: which of the two is meant can't be told, and names can."""

    @cache.stage
    def lower(student: WeightSet, teacher: WeightSet) -> Program:
        name = "teacher.scale" if "teacher.scale" in teacher else "scale"
        return to_toy(student.select(["w"]), float(teacher[name].read()))

    student, teacher = model(1), model(5)
    with pytest.raises(LinkError, match="'scale'"):
        link(lower(student, teacher), student)
    program = lower(student, teacher.rename(lambda name: f"teacher.{name}"))
    assert run(program, student.select(["w"])) == (5 * W @ X).tolist()


class Quantised(NamedTuple):
    program: Program
    weights: WeightSet


@pytest.mark.parametrize("mode", ["on", "read-only"])
def test_weights_that_a_stage_makes_anew_fit_what_it_compiled(tmp_path, mode):
    """Quantisation: every weight is read, and comes back under its name with other bytes."""
    cache = cachec.Cache(tmp_path / "cache", log="off", mode=mode)
    stages = Stages(cache)

    @cache.stage
    def quantise(weights: WeightSet) -> Quantised:
        made = weights.select(["w"]).derive({"w": lambda weight: np.round(weight.read())})
        return Quantised(to_toy(made, float(np.abs(weights["w"].read()).max())), made)

    one, other = (WeightSet.from_arrays({"w": W + by}) for by in (0.25, 1.25))
    for _ in range(2):
        found, again = quantise(one), quantise(other)
        assert run(found.program, found.weights) == (5.25 * np.round(W + 0.25) @ X).tolist()
        module = stages.build(found.program)
        assert run(module, found.weights) == run(found.program, found.weights)
        with pytest.raises(LinkError, match="'w'"):
            link(module, again.weights)


def test_folded_weights_of_renamed_programs(cache):
    """By the caller's names, whatever the program calls them."""

    @cache.stage
    def lower(weights: WeightSet) -> Program:
        program = without_scale(weights.rename({name: name.split(".")[-1] for name in weights}), 2.0)
        assert weights[next(name for name in weights if name.endswith("scale"))].read() == 2
        callers = {name.split(".")[-1]: name for name in weights}
        return program.linked_as(program.manifest.with_callers(callers))

    def named(scale: float) -> WeightSet:
        return model(scale).rename(lambda name: f"layer.{name}")

    assert run(lower(named(2)), named(2)) == run(lower(named(2)), named(2).select(["layer.w"])) == (2 * W @ X).tolist()
    with pytest.raises(LinkError, match=r"'layer\.scale'"):
        link(lower(named(2)), named(5))


def test_names_that_are_globs(cache):
    @cache.stage
    def lower(weights: WeightSet) -> Program:
        return to_toy(weights.select(["w"]), float(weights["s[*]"].read()))

    weights = WeightSet.from_arrays({"w": W, "s[*]": np.array(1, "f4"), "sx": W})
    assert run(lower(weights), weights.select(["w", "s[*]"])) == (W @ X).tolist()
    with pytest.raises(LinkError, match="extra 'sx'"):
        link(lower(weights), weights)


def test_a_folder_and_a_plain_value(cache, stages):
    @cache.stage
    def parts(weights: WeightSet) -> tuple[cachec.Dir, float]:
        with cachec.scratch() as folder:
            (folder / "d").mkdir()
            return cachec.Dir(folder / "d", kind=FORMAT), float(weights["scale"].read())

    for _ in range(2):
        made, value = parts(model(1))
        assert set(made.manifest.folded) == {"scale"}
        assert value == 1


def test_only_folded_weights_are_hashed(stages, monkeypatch):
    module = stages.build(stages.lower(model(1)))
    hashed = []
    digest = cachec.Weight.digest

    def noted(self, digests=None):
        hashed.append(self.name)
        return digest(self, digests)

    monkeypatch.setattr(cachec.Weight, "digest", noted)
    run(module, model(1))
    assert hashed == ["scale"]
