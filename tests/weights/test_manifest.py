"""The manifest is checked at every link: what is missing, extra, of another shape or type, tied or not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachec
from cachec.errors import LinkError, WeightsChanged
from cachec.programs.registry import Plugins
from cachec.testing.fakes import ToyPlugin, compile_toy, to_toy
from cachec.weights import WeightSet, from_arrays, open_weights
from cachec.weights.manifest import Manifest


class Toy(ToyPlugin):
    """Counts its links."""

    def __init__(self) -> None:
        super().__init__()
        self.links = 0

    def link(self, artifact: Any, weights: WeightSet) -> Any:
        self.links += 1
        return super().link(artifact, weights)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    """The toy plugin, installed."""
    plugin = Toy()
    monkeypatch.setattr(Plugins, "all", lambda self: (plugin,))
    return plugin


@pytest.fixture
def arrays(make: Any) -> dict[str, Any]:
    return {"a": make.ramp(2, 3), "b": make.ramp(2, 3, start=1), "c": make.ramp(2, 3, start=1)}


@pytest.fixture
def weights(arrays: dict[str, Any]) -> WeightSet:
    return from_arrays(arrays)


def compiled(weights: WeightSet, tmp_path: Path) -> list[Any]:
    program = to_toy(weights, 2.0)
    return [program, compile_toy(program, tmp_path / "module")]


def test_what_fits_is_linked(weights: WeightSet, arrays: dict[str, Any], tmp_path: Path, toy: Toy, make: Any) -> None:
    for artifact in compiled(weights, tmp_path):
        for fits in (
            weights,
            from_arrays({name: array * 3 for name, array in arrays.items()}),
            open_weights(make.write(tmp_path / "w.safetensors", dict(reversed(arrays.items())))),
            weights.overlay({"a": make.ramp(2, 3, start=9)}),
            weights.derive({"b": lambda weight: -weight.read()}),
            weights.overlay({"d": make.ramp(1)}).select(exclude="d"),
        ):
            run = cachec.link(artifact, fits)
            expected = 2 * sum(fits[name].read() @ np.ones(3, "f4") for name in "abc")
            np.testing.assert_allclose(run(np.ones(3, "f4")), expected)
    assert toy.links == 12


def _tied(weights: WeightSet) -> WeightSet:
    return WeightSet.from_weights(dict(weights), tied=[("b", "c")])


CASES: dict[str, tuple[Callable[[WeightSet], WeightSet], str]] = {
    "missing": (lambda w: w.select(exclude="b"), "missing 'b'"),
    "all missing": (lambda w: from_arrays({}), "missing 'a'; missing 'b'; missing 'c'"),
    "extra": (lambda w: w.overlay({"d": np.zeros(1, "f4")}), "extra 'd'"),
    "renamed": (lambda w: w.rename({"a": "z"}), "missing 'a'; extra 'z'"),
    "prefix": (lambda w: w.rename(lambda n: "m." + n), "did you mean weights.rename(lambda n: n.removeprefix('m.'))?"),
    "shape": (
        lambda w: w.overlay({"a": np.zeros((3, 2), "f4")}, replace=True),
        "'a': shape expected (2, 3), found (3, 2)",
    ),
    "dtype": (
        lambda w: w.overlay({"a": np.zeros((2, 3), "i4")}, replace=True),
        "'a': dtype expected 'float32', found 'int32'",
    ),
    "bytes": (
        lambda w: w.overlay({"a": np.zeros((2, 3), "f8")}, replace=True),
        "'a': dtype expected 'float32', found 'float64', nbytes expected 24, found 48",
    ),
    "tied": (_tied, "'b': alias expected None, found 'b'; 'c': alias expected None, found 'b'"),
    "sharded": (
        lambda w: w.overlay({"a": np.zeros((4, 3), "f4")}, replace=True).shard({"a": 0}, 0, 2),
        "'a': shard expected None, found (0, 2)",
    ),
}


@pytest.mark.parametrize(("change", "message"), CASES.values(), ids=CASES.keys())
def test_what_does_not_fit_reaches_no_runtime(
    weights: WeightSet, tmp_path: Path, toy: Toy, change: Callable[[WeightSet], WeightSet], message: str
) -> None:
    for artifact in compiled(weights, tmp_path):
        with pytest.raises(LinkError, match=re.escape(message)):
            cachec.link(artifact, change(weights))
    assert toy.links == 0


def test_tied_expected_and_untied_given(weights: WeightSet, tmp_path: Path, toy: Toy) -> None:
    for artifact in compiled(_tied(weights), tmp_path):
        cachec.link(artifact, _tied(weights))
        with pytest.raises(LinkError, match="'b': alias expected 'b', found None; 'c': alias expected 'b', found None"):
            cachec.link(artifact, weights)
    assert toy.links == 2


def test_an_artifact_without_a_manifest_takes_no_weights(weights: WeightSet, tmp_path: Path, toy: Toy) -> None:
    (tmp_path / "m").write_text('{"names": [], "scale": 1}')
    bare = cachec.File(tmp_path / "m", kind="toy:json")
    cachec.link(bare, from_arrays({}))
    with pytest.raises(LinkError, match="extra 'a'; extra 'b'; extra 'c'"):
        cachec.link(bare, weights)
    assert toy.links == 1


def test_the_manifest_travels_through_stages(
    cache: cachec.Cache, weights: WeightSet, arrays: dict[str, Any], tmp_path: Path, toy: Toy
) -> None:
    @cache.stage(version="1")
    def lower(weights: cachec.WeightSet) -> cachec.Program:
        return to_toy(weights, 2.0)

    @cache.stage(version="1")
    def build(program: cachec.Program, out: str) -> cachec.File:
        found = compile_toy(program, Path(out))
        return cachec.File(found.path, kind=found.kind)  # says nothing of weights by itself

    for _ in range(2):
        module = build(lower(weights), str(tmp_path / "out.toy"))
        assert module.manifest == weights.manifest
        cachec.link(module, weights)
        with pytest.raises(LinkError, match="missing 'c'"):
            cachec.link(module, weights.select(exclude="c"))
    assert toy.links == 2


def test_a_rank_links_with_its_own_shards(tmp_path: Path, make: Any, toy: Toy) -> None:
    whole = from_arrays({"w": make.ramp(4, 3)})
    owned = [whole.shard({"w": 0}, rank, 2) for rank in range(2)]
    for artifact in compiled(owned[0], tmp_path):
        for rank, own in enumerate(owned):
            assert (
                cachec.link(artifact, own)(np.ones(3, "f4")).tolist()
                == (2 * make.ramp(4, 3)[2 * rank : 2 * rank + 2].sum(axis=1)).tolist()
            )
        with pytest.raises(LinkError, match=r"'w': shape expected \(2, 3\), found \(4, 3\).*shard expected \(0, 2\)"):
            cachec.link(artifact, whole)
        with pytest.raises(LinkError, match=r"shard expected \(0, 2\), found \(1, 2\)"):
            cachec.link(artifact, from_arrays({"w": make.ramp(2, 6)}).shard({"w": 1}, 0, 2))


def test_a_replaced_file_is_not_linked(tmp_path: Path, arrays: dict[str, Any], make: Any) -> None:
    opened = open_weights(make.write(tmp_path / "w.safetensors", arrays))
    module = compiled(opened, tmp_path)[0]
    make.write(tmp_path / "new", {name: array + 1 for name, array in arrays.items()})
    (tmp_path / "new").rename(tmp_path / "w.safetensors")
    with pytest.raises(WeightsChanged, match="open the weights again"):
        cachec.link(module, opened)


def test_a_malformed_manifest_is_refused(weights: WeightSet) -> None:
    for text in (b"", b"{}", b"[1]", b'[{"name": "a"}]'):
        with pytest.raises(LinkError, match="is malformed"):
            Manifest("0" * 64, lambda text=text: text).check(weights.specs)  # type: ignore[misc]
