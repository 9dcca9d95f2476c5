"""Programs that renamed their weights: what is made of them is shared, the names are each caller's own."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

import cachec
from cachec import LinkError, Manifest, Program, WeightSet
from cachec.errors import UnkeyableArgument
from cachec.programs.linker import link
from cachec.testing.fakes import FORMAT


def renamed(first: str, second: str) -> Program:
    """A program of two weights that the caller calls otherwise."""
    weights = WeightSet.from_arrays({f"alpha.{n}": np.ones(2, "f4") for n in range(2)})
    manifest = weights.manifest.with_callers({"alpha.0": first, "alpha.1": second})
    ir = json.dumps({"names": sorted(weights), "scale": 1.0})
    return Program(ir, format=FORMAT, manifest=manifest)


@dataclass(frozen=True)
class Both:
    module: Program
    file: cachec.File


def reason(cache, stage, *arguments):
    return cache.call(stage, *arguments)[1].reason.value


@pytest.mark.parametrize("mode", ["on", "off", "refresh", "verify"])
def test_results_speak_of_the_callers_weights(tmp_path, mode):
    cache = cachec.Cache(tmp_path / "cache", log="off", mode=mode)

    @cache.stage
    def build(program: Program) -> list[Both]:
        with cachec.scratch() as folder:
            path = folder / "m.json"
            path.write_bytes(program.ir)
            explicit = cachec.File(path, kind=FORMAT, manifest=program.manifest)
            return [Both(program, explicit), Both(program, cachec.File(path, kind=FORMAT))]

    for names in (("a.x", "a.y"), ("b.x", "b.y"), ("a.y", "a.x")):
        explicit, inherited = build(renamed(*names))
        wanted = dict(zip(("alpha.0", "alpha.1"), names, strict=True))
        assert explicit.module.manifest.callers == wanted
        assert explicit.file.manifest.callers == wanted
        if mode in {"on", "refresh"}:
            assert inherited.file.manifest.callers == wanted


def test_a_stage_does_not_see_the_names(cache):
    """They are in no key, so nothing may depend on them."""

    @cache.stage
    def seen(program: Program, file: cachec.File) -> list[object]:
        return [dict(program.manifest.callers), dict(file.manifest.callers)]

    def file(names: tuple[str, str]) -> cachec.File:
        path = cache.dir.parent / "f.json"
        path.write_bytes(b"{}")
        return cachec.File(path, kind=FORMAT, manifest=renamed(*names).manifest)

    assert seen(renamed("a", "b"), file(("a", "b"))) == [{}, {}]
    assert reason(cache, seen, renamed("c", "d"), file(("c", "d"))) == "hit"


def test_a_stage_that_renames_again_speaks_of_the_same_weights(cache):
    @cache.stage
    def part(program: Program) -> Program:
        specs = {"beta.0": cachec.WeightSpec(name="beta.0", dtype="float32", shape=(2,), nbytes=8)}
        return Program("{}", format=FORMAT, manifest=Manifest.of(specs).with_callers({"beta.0": "alpha.1"}))

    assert part(renamed("a.x", "a.y")).manifest.callers == {"beta.0": "a.y"}
    again = part(renamed("b.x", "b.y"))
    assert reason(cache, part, renamed("c.x", "c.y")) == "hit"
    assert again.manifest.callers == {"beta.0": "b.y"}


def test_a_program_that_a_stage_made_keeps_its_names(cache):
    @cache.stage
    def strip(first: str) -> Program:
        return renamed(first, "y")

    assert strip("x").manifest.callers == strip("x").manifest.callers == {"alpha.0": "x", "alpha.1": "y"}


def test_two_programs_that_mean_different_weights_are_refused(cache):
    @cache.stage
    def both(one: Program, other: Program) -> int:
        return 1

    assert both(renamed("a", "b"), renamed("a", "b")) == 1
    with pytest.raises(UnkeyableArgument, match="'a'"):
        both(renamed("a", "b"), renamed("b", "a"))
    plain = renamed("a", "b").linked_as(Manifest.of(renamed("a", "b").manifest.weights))
    for order in ((plain, renamed("a", "b")), (renamed("a", "b"), plain)):  # its own "alpha.0"
        with pytest.raises(UnkeyableArgument, match=r"'alpha\.0'"):
            both(*order)
    assert both(plain, plain) == 1
    assert both(renamed("alpha.0", "alpha.1"), plain) == 1


def test_a_stage_within_a_stage_does_not_mix_them_up(cache):
    """Inside a stage its argument's weights have the argument's names: no other program's map explains these."""

    @cache.stage
    def inner(one: Program, other: Program) -> list[Program]:
        return [one, other]

    @cache.stage
    def outer(one: Program) -> list[Program]:
        return inner(one, renamed("c", "d"))

    with pytest.raises(UnkeyableArgument, match=r"'alpha\.0'"):
        outer(renamed("a", "b"))


def test_files_that_a_stage_made_keep_their_names(cache):
    """Also where the stage was given a program of other names."""

    @cache.stage
    def build(program: Program) -> tuple[cachec.File, cachec.File, cachec.Dir]:
        with cachec.scratch() as folder:
            (folder / "d").mkdir()
            (folder / "f").write_bytes(b"1")
            own = renamed("c", "d").manifest
            made = [cachec.File(folder / "f", kind=FORMAT, manifest=each) for each in (program.manifest, own)]
            return (*made, cachec.Dir(folder / "d", FORMAT, own))

    for names in (("a", "b"), ("x", "y")):
        found = [each.manifest.callers for each in build(renamed(*names))]
        assert found == [
            dict(zip(("alpha.0", "alpha.1"), each, strict=True)) for each in (names, ("c", "d"), ("c", "d"))
        ]
    assert reason(cache, build, renamed("e", "f")) == "hit"


def test_link_takes_the_callers_weights(monkeypatch):
    linked: list[WeightSet] = []

    class Plugins:
        def find(self, name):
            return self

        def link(self, artifact, weights):
            linked.append(weights)

    monkeypatch.setattr("cachec.programs.linker.installed_plugins", Plugins)
    values = {name: np.full(2, number, "f4") for number, name in enumerate(("x", "y", "z"))}
    weights = WeightSet.from_arrays(values)
    link(renamed("x", "y"), weights.select(["x", "y"]))
    link(renamed("y", "x"), weights.select(["x", "y"]))
    assert [float(each["alpha.0"].read()[0]) for each in linked] == [0, 1]
    with pytest.raises(LinkError, match="missing 'y'"):
        link(renamed("x", "y"), weights.select(["x"]))
    with pytest.raises(LinkError, match="extra 'z'"):
        link(renamed("x", "y"), weights)
    crossed = weights.select(["x", "y"]).rename({"x": "alpha.1", "y": "alpha.0"})
    link(renamed("alpha.1", "alpha.0"), crossed)
    assert float(linked[-1]["alpha.0"].read()[0]) == 0
    with pytest.raises(LinkError, match=r"'alpha\.1', which is the artifact's name for another"):
        link(renamed("x", "y"), weights.rename({"z": "alpha.1"}))
