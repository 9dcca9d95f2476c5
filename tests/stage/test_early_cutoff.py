"""Early cutoff: a stage that runs again with an equal result does not make the next stage run."""

from __future__ import annotations

import os

import numpy as np

import cachec
from cachec import Reason


def test_an_equal_program_lets_the_next_stage_hit(cache):
    @cache.stage
    def lower(source: str) -> cachec.Program:
        return cachec.Program(source.strip(), format="x:text", manifest=cachec.Manifest.of({}))

    @cache.stage
    def build(program: cachec.Program) -> bytes:
        return os.urandom(8)

    first = build(lower("add"))
    program, outcome = cache.call(lower, "add ")
    assert outcome.reason is Reason.OPTION_CHANGED
    value, outcome = cache.call(build, program)
    assert (value, outcome.reason) == (first, Reason.HIT)
    _, outcome = cache.call(build, lower("mul"))
    assert outcome.reason is Reason.TOPOLOGY_CHANGED
    assert "no plugin is named" in outcome.detail
    assert "IR" in outcome.detail


def test_files_and_arrays_count_by_content(cache, tmp_path):
    @cache.stage
    def make(n: int) -> tuple[cachec.File, np.ndarray]:
        (tmp_path / f"{n}").write_bytes(b"same")
        return cachec.File(tmp_path / f"{n}"), np.arange(4)

    @cache.stage
    def use(file: cachec.File, array: np.ndarray) -> bytes:
        return os.urandom(8)

    assert use(*make(1)) == use(*make(2))


def test_files_inherit_the_manifest_of_the_program(cache, tmp_path, weights_file):
    weights = cachec.open_weights(weights_file)

    @cache.stage
    def lower(weights: cachec.WeightSet) -> cachec.Program:
        return cachec.Program("p", format="x:text", manifest=weights.manifest)

    @cache.stage(ignore=["out"])
    def build(program: cachec.Program, out: str) -> cachec.File:
        with open(out, "wb") as file:
            file.write(b"module")
        return cachec.File(out, kind="x:module")

    for _ in range(2):
        file = build(lower(weights), str(tmp_path / "out"))
        assert file.manifest == weights.manifest
        assert dict(file.manifest.weights) == dict(weights.specs)
