"""What a run reads beyond its key: weights, files, absent files, listings; and inputs that change meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import cachec
from cachec import Reason
from tests.conftest import write_weights


@pytest.fixture
def fold(cache):
    @cache.stage
    def fold(weights: cachec.WeightSet) -> bytes:
        return os.urandom(8) + repr(float(weights["scale"].read())).encode()

    return fold


def test_a_weight_that_is_read_counts_by_content_and_no_other(cache, fold, tmp_path, weights_file):
    first, outcome = cache.call(fold, cachec.open_weights(weights_file))
    assert outcome.stored
    scale = cachec.open_weights(weights_file)["scale"].read().copy()
    others = write_weights(tmp_path / "o.safetensors", seed=5, scale=scale)
    value, outcome = cache.call(fold, cachec.open_weights(others))
    assert (value, outcome.reason) == (first, Reason.HIT)
    changed = write_weights(tmp_path / "c.safetensors", seed=0, scale=np.full((), scale + 1))
    value, outcome = cache.call(fold, cachec.open_weights(changed))
    assert outcome.reason is Reason.WEIGHT_CONTENT_CHANGED
    assert "scale" in outcome.detail
    assert value != first
    # both traces stay: going back hits
    assert fold(cachec.open_weights(weights_file)) == first


def test_weights_that_are_not_read_count_by_specification_only(cache, tmp_path, weights_file):
    @cache.stage
    def lower(weights: cachec.WeightSet) -> cachec.Program:
        text = ",".join(f"{name}{spec.shape}" for name, spec in weights.specs.items()) + os.urandom(4).hex()
        return cachec.Program(text, format="test:text", manifest=weights.manifest)

    first = lower(cachec.open_weights(weights_file))
    other = write_weights(tmp_path / "o.safetensors", seed=5)
    assert lower(cachec.open_weights(other)) == first
    bigger = write_weights(tmp_path / "g.safetensors", seed=0, a=np.zeros((5, 3), "f4"))
    program, outcome = cache.call(lower, cachec.open_weights(bigger))
    assert outcome.reason is Reason.WEIGHT_SPEC_CHANGED
    assert "a" in outcome.detail
    assert program != first


def test_weights_pass_through_as_the_callers_own(cache, tmp_path, weights_file):
    @cache.stage
    def narrow(weights: cachec.WeightSet) -> tuple[cachec.WeightSet, cachec.WeightSet]:
        return weights, weights.select(["a"]).rename({"a": "alpha"})

    opened = cachec.open_weights(weights_file)
    for _ in range(2):
        whole, part = narrow(opened)
        assert dict(whole.specs) == dict(opened.specs)
        np.testing.assert_array_equal(part["alpha"].read(), opened["a"].read())
    other = cachec.open_weights(write_weights(tmp_path / "o.safetensors", seed=5))
    (_, part), outcome = cache.call(narrow, other)
    assert outcome.reason is Reason.HIT
    np.testing.assert_array_equal(part["alpha"].read(), other["a"].read())


def test_handles_close_when_the_stage_returns(cache, weights_file):
    kept = []

    @cache.stage(ignore=["keep"])
    def leak(weights: cachec.WeightSet, keep: object) -> bytes:
        keep(weights)
        return b""

    leak(cachec.open_weights(weights_file), kept.append)
    with pytest.raises(cachec.HandleClosed, match="a"):
        kept[0]["a"].read()


def test_placeholders_refuse_to_be_read(cache, weights_file):
    @cache.stage
    def stage(weights: cachec.WeightSet) -> bytes:
        return bytes(weights.placeholders("stage")["a"].read())

    with pytest.raises(cachec.WeightReadError, match="'a'"):
        stage(cachec.open_weights(weights_file))


def test_a_single_weight_as_an_argument_is_refused(cache, weights_file):
    @cache.stage
    def stage(weight: object) -> bytes:
        return b""

    with pytest.raises(cachec.UnkeyableArgument, match="select"):
        stage(cachec.open_weights(weights_file)["a"])


def test_weights_through_a_closure_are_refused(cache, weights_file):
    weights = cachec.open_weights(weights_file)

    @cache.stage
    def stage() -> bytes:
        return bytes(weights["a"].read())

    with pytest.raises(cachec.CapturedWeights, match="weights"):
        stage()


def test_the_reads_of_an_inner_stage_are_reads_of_the_outer(cache, fold, tmp_path, weights_file):
    @cache.stage
    def outer(weights: cachec.WeightSet) -> bytes:
        return b"outer" + fold(weights)

    opened = cachec.open_weights(weights_file)
    fold(opened)  # the inner one hits inside the outer
    first = outer(opened)
    changed = write_weights(tmp_path / "c.safetensors", seed=0, scale=np.full((), 9, "f4"))
    value, outcome = cache.call(outer, cachec.open_weights(changed))
    assert outcome.reason is Reason.WEIGHT_CONTENT_CHANGED
    assert value != first


def test_files_and_absences_and_listings(cache, tmp_path):
    folder = tmp_path / "include"
    folder.mkdir()
    header = folder / "a.h"
    header.write_text("1")

    @cache.stage(ignore=["folder"])
    def stage(folder: str) -> bytes:
        cachec.depends(folder)
        cachec.depends(f"{folder}/a.h")
        cachec.depends(f"{folder}/earlier.h")
        return os.urandom(8)

    place = str(folder)
    first = stage(place)
    assert stage(place) == first
    header.write_text("2")
    second, outcome = cache.call(stage, place)
    assert outcome.reason is Reason.DEPENDENCY_CHANGED
    assert "a.h" in outcome.detail
    header.write_text("1")
    assert stage(place) == first
    (folder / "earlier.h").write_text("")
    _, outcome = cache.call(stage, place)
    assert outcome.reason is Reason.DEPENDENCY_CHANGED
    (folder / "earlier.h").unlink()
    assert stage(place) == first
    assert second != first


@pytest.mark.parametrize(
    ("declared", "edited", "neighbour"),
    [("include/a.h", "include/a.h", "include/b.h"), ("include", "include/c.h", "include/a.h"), ("c.h", "c.h", "d.h")],
    ids=["file", "folder", "absent"],
)
def test_what_is_declared_counts_alone(cache, tmp_path, monkeypatch, declared, edited, neighbour):
    """A file by its content, a folder by its names, what is missing by its absence; found anew in every folder."""
    for folder in ("one/include", "two/include"):
        (tmp_path / folder).mkdir(parents=True)
        for name in "ab":
            (tmp_path / folder / f"{name}.h").write_text("1")

    @cache.stage(name="stage", version="1")
    def stage() -> bytes:
        assert os.path.isabs(path := cachec.depends(declared)), path  # getcwd() would count too
        assert path.endswith(f"/{declared}")
        return os.urandom(8)

    monkeypatch.chdir(tmp_path / "one")
    first = stage()
    Path(neighbour).write_text("2")
    assert stage() == first
    Path(edited).write_text("2")
    second, outcome = cache.call(stage)
    assert outcome.reason is Reason.DEPENDENCY_CHANGED
    assert second != first
    monkeypatch.chdir(tmp_path / "two")
    assert stage() == first


def test_an_argument_changed_by_the_stage_gives_the_fresh_result_stored_nowhere(cache):
    @cache.stage
    def stage(options: dict) -> bytes:
        options["seen"] = True
        return os.urandom(8)

    first, outcome = cache.call(stage, {"a": 1})
    assert (outcome.reason, outcome.stored) == (Reason.INPUT_CHANGED, False)
    assert "options" in outcome.detail
    assert stage({"a": 1}) != first


def test_a_file_changed_during_the_run_is_stored_nowhere(cache, tmp_path):
    source = tmp_path / "in"
    source.write_bytes(b"before")

    @cache.stage(ignore=["write"])
    def stage(path: cachec.File, write: object) -> bytes:
        write()
        return path.read_bytes()

    value, outcome = cache.call(stage, cachec.File(source), lambda: source.write_bytes(b"after!"))
    assert (value, outcome.reason, outcome.stored) == (b"after!", Reason.INPUT_CHANGED, False)
    source.write_bytes(b"before")
    value, outcome = cache.call(stage, cachec.File(source), lambda: None)
    assert (value, outcome.stored) == (b"before", True)


@pytest.mark.parametrize("how", ["replaced", "in place"])
def test_a_checkpoint_changed_during_the_run(cache, tmp_path, weights_file, how):
    other = write_weights(tmp_path / "other.safetensors", seed=7)

    def change():
        if how == "replaced":
            os.replace(other, weights_file)
        else:
            before = weights_file.stat()
            with weights_file.open("r+b") as file:
                file.write(other.read_bytes())
            os.utime(weights_file, ns=(before.st_atime_ns, before.st_mtime_ns))

    @cache.stage(ignore=["change"])
    def stage(weights: cachec.WeightSet, change: object) -> bytes:
        weights["a"].read()
        change()
        return os.urandom(8)

    first, outcome = cache.call(stage, cachec.open_weights(weights_file), change)
    assert (outcome.reason, outcome.stored) == (Reason.INPUT_CHANGED, False)
    assert stage(cachec.open_weights(weights_file), lambda: None) != first


@pytest.mark.parametrize("how", ["replaced", "in place"])
def test_a_checkpoint_changed_between_two_calls(cache, fold, tmp_path, weights_file, how):
    first = fold(cachec.open_weights(weights_file))
    other = write_weights(tmp_path / "other.safetensors", seed=7)
    before = weights_file.stat()
    if how == "replaced":
        os.replace(other, weights_file)
    else:
        with weights_file.open("r+b") as file:
            file.write(other.read_bytes())
    os.utime(weights_file, ns=(before.st_atime_ns, before.st_mtime_ns))
    value, outcome = cache.call(fold, cachec.open_weights(weights_file))
    assert outcome.reason is Reason.WEIGHT_CONTENT_CHANGED
    assert value != first


def test_a_handle_opened_before_the_change_raises(cache, fold, weights_file, tmp_path):
    opened = cachec.open_weights(weights_file)
    os.replace(write_weights(tmp_path / "other.safetensors", seed=7), weights_file)
    with pytest.raises(cachec.WeightsChanged, match=r"w\.safetensors"):
        fold(opened)


def test_a_nested_stage_is_read_with_what_it_uses_and_declares(cache, tmp_path):
    (tmp_path / "table.txt").write_text("1")

    @cache.stage(tools=["msgspec", "sh"], env=["TABLE"], depends=[tmp_path / "table.txt"])
    def inner(x: int) -> int:
        return int(np.add(x, 1))

    reads = [(read.kind, read.where) for read in inner.engine.tools.key_builder.stage_reads(inner)]
    declared = [("distribution", "msgspec"), ("tool", "sh"), ("env", "TABLE"), ("file", str(tmp_path / "table.txt"))]
    assert reads == [("distribution", "numpy"), *declared]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_an_inner_stage_hits_on_counts_for_the_one_around_it(cache, tmp_path, kind):
    """The outer stage makes the argument, so that it is in no key of its own."""
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "text").write_text("one")

    @cache.stage
    def shown(path: Path) -> str:
        return "".join(each.read_text() for each in (path.iterdir() if path.is_dir() else [path]))

    @cache.stage
    def outer(number: int) -> str:
        return f"{number} " + shown(folder if kind == "folder" else folder / "text")

    assert shown(folder if kind == "folder" else folder / "text") == "one"
    assert outer(1) == "1 one"
    assert cache.call(outer, 1)[1].hit
    (folder / "text").write_text("two")
    assert outer(1) == "1 two"


def test_what_a_stage_makes_for_an_inner_one_is_no_input(cache, tmp_path):
    @cache.stage
    def shown(path: Path) -> str:
        return path.read_text()

    @cache.stage
    def outer(number: int) -> str:
        path = tmp_path / f"made-{number % 2}"
        path.write_text("text")
        text = shown(path)
        path.unlink()
        return f"{number} {text}"

    assert [outer(number) for number in (1, 3)] == ["1 text", "3 text"]
    assert cache.call(outer, 3)[1].hit
