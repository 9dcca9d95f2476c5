"""The conformance suite itself: it passes a sound plugin, and each of its tests fails one that breaks what it tests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachec
from cachec.testing.conformance import PluginConformance
from cachec.testing.fakes import FORMAT, ToyPlugin, compile_toy, to_toy
from cachec.weights.manifest import Manifest

SHAPES = [("a", (2, 2)), ("b", (2, 2)), ("zero", ()), ("one", (1,)), ("eight", (8,)), ("nine", (9,))]


class _Toy(PluginConformance):
    plugin = ToyPlugin()

    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        @cache.stage
        def lower(weights: cachec.WeightSet, variant: float) -> cachec.Program:
            return to_toy(weights, variant)

        return lower, self.build_stage(cache)

    def build_stage(self, cache: cachec.Cache) -> Any:
        output = Path(str(cache.dir) + ".toy")

        @cache.stage(depends=[compile_toy])
        def build(program: cachec.Program) -> cachec.File:
            return compile_toy(program, output)

        return build

    def weight_sets(self, folder: Path) -> tuple[cachec.WeightSet, cachec.WeightSet]:
        def arrays(seed: int) -> dict[str, np.ndarray]:
            return {name: np.full(shape, seed + i, "f4") for i, (name, shape) in enumerate(SHAPES)}

        return cachec.WeightSet.from_arrays(arrays(1)), cachec.WeightSet.from_arrays(arrays(10))

    def inputs(self) -> tuple[Any, ...]:
        return (np.ones(2, "f4"),)

    def link(self, artifact: Any, weights: cachec.WeightSet) -> Any:
        artifact.manifest.check(weights.specs)  # the toy is no entry point, so cachec.link does not find it
        return self.plugin.link(artifact, weights)


class TestToy(_Toy):
    test_the_plugin_does_not_import_its_compiler = None  # the toy has no package of its own


class KeepsFirstWeights(_Toy):
    """The artifact runs with the weights that it was compiled with, whatever it is linked to."""

    def link(self, artifact: Any, weights: cachec.WeightSet) -> Any:
        return super().link(artifact, self.weight_sets(Path())[0])


class DropsConstants(_Toy):
    """A constant is left out of the program's IR."""

    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        _, build = super().stages(cache)

        @cache.stage(version="1")
        def lower(weights: cachec.WeightSet, variant: float) -> cachec.Program:
            return to_toy(weights, 1.0)

        return lower, build


class NoManifest(_Toy):
    """The manifest is lost on the way, and linking takes anything."""

    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        _, build = super().stages(cache)

        @cache.stage(version="1")
        def lower(weights: cachec.WeightSet, variant: float) -> cachec.Program:
            return cachec.Program(to_toy(weights, variant).ir, format=FORMAT, manifest=Manifest.of({}))

        return lower, build

    def link(self, artifact: Any, weights: cachec.WeightSet) -> Any:
        return lambda x: x


class ReportsNumbers(_Toy):
    plugin = ToyPlugin({"precision": 3})  # type: ignore[dict-item]


class Unstable(ToyPlugin):
    def ambient(self) -> dict[str, str]:
        self.settings["calls"] = self.settings.get("calls", "") + "x"
        return dict(self.settings)


class ReportsAnew(_Toy):
    plugin = Unstable()


class KeepsSmallWeights(_Toy):
    """A weight of few elements is taken by value when the artifact is first linked."""

    def link(self, artifact: Any, weights: cachec.WeightSet) -> Any:
        kept = self.weight_sets(Path())[0]["one"]
        return super().link(artifact, cachec.WeightSet.from_weights({**weights, "one": kept}))


class ReadsValues(_Toy):
    """What is made depends on a weight's value."""

    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        _, build = super().stages(cache)

        @cache.stage(version="1")
        def lower(weights: cachec.WeightSet, variant: float) -> cachec.Program:
            return to_toy(weights, variant + float(weights["zero"].read() > 1))

        return lower, build


class FoldsValues(_Toy):
    """The same of the build, which got at them by another way than its argument."""

    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        seen: list[bytes] = []

        @cache.stage(version="1")
        def lower(weights: cachec.WeightSet, variant: float) -> cachec.Program:
            seen.append(weights["zero"].read().tobytes())
            return to_toy(weights, variant)

        @cache.stage(version="1")
        def build(program: cachec.Program) -> cachec.File:
            made = compile_toy(program, Path(f"{cache.dir}.{len(seen)}"))
            made.path.write_bytes(made.path.read_bytes() + seen[-1])
            return made

        return lower, build


class FewWeights(_Toy):
    def weight_sets(self, folder: Path) -> tuple[cachec.WeightSet, cachec.WeightSet]:
        first, second = super().weight_sets(folder)
        return first.select(exclude=["zero"]), second.select(exclude=["zero"])


class EqualToAll(ToyPlugin):
    def compare(self, fresh: Any, stored: Any) -> str | None:
        return None


class ComparesNothing(_Toy):
    plugin = EqualToAll()

    def values(self) -> tuple[Any, ...]:
        return 1, 2


class LeavesSettings(_Toy):
    """A build changes a setting for good."""

    plugin = ToyPlugin()

    def build_stage(self, cache: cachec.Cache) -> Any:
        settings, output = self.plugin.settings, Path(str(cache.dir) + ".toy")

        @cache.stage(version="1")
        def build(program: cachec.Program) -> cachec.File:
            settings["precision"] = "high"
            return compile_toy(program, output)

        return build


class ImportsItsCompiler(_Toy):
    """A hit imports what the plugin says is its compiler."""

    compilers = ("cachec.testing.fakes",)


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (KeepsSmallWeights, "test_every_weight_is_the_linked_one"),
        (ReadsValues, "test_a_build_reads_no_value"),
        (FoldsValues, "test_a_build_reads_no_value"),
        (NoManifest, "test_weights_of_other_types_and_shapes_are_refused"),
        (LeavesSettings, "test_ambient_is_the_same_after_a_build"),
        (ComparesNothing, "test_compare_tells_artifacts_apart"),
        (KeepsFirstWeights, "test_new_weights_hit_and_give_their_own_numbers"),
        (DropsConstants, "test_a_value_that_no_name_stands_for_is_in_the_key"),
        (NoManifest, "test_weights_that_do_not_fit_are_refused"),
    ],
)
def test_a_broken_compiler_fails(broken, test, tmp_path):
    suite = broken()
    cache = cachec.Cache(tmp_path / "cache", log="off")
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(suite, test)(cache, suite.weight_sets(tmp_path))


def test_a_suite_without_small_weights_fails(tmp_path):
    with pytest.raises(AssertionError, match="weights of 0 dimensions"):
        FewWeights().test_small_weights_are_among_them(FewWeights().weight_sets(tmp_path))


def test_values_that_compare_does_not_tell_apart_fail():
    with pytest.raises(AssertionError):
        ComparesNothing().test_compare_tells_values_apart()


@pytest.mark.long
def test_a_hit_that_imports_the_compiler_fails(tmp_path, request):
    with pytest.raises(AssertionError, match="a hit imported the compiler"):
        ImportsItsCompiler().test_a_hit_in_a_new_process_imports_no_compiler(tmp_path, request)


@pytest.mark.parametrize("broken", [ReportsNumbers, ReportsAnew])
def test_a_plugin_with_a_bad_ambient_fails(broken):
    with pytest.raises(AssertionError):
        broken().test_ambient_is_stable_text()


def test_a_toy_module_that_is_none_is_a_link_error(tmp_path):
    for text in ("", "[]", json.dumps({"names": []})):
        (tmp_path / "x").write_text(text)
        with pytest.raises(cachec.LinkError, match="no toy module"):
            ToyPlugin().link(cachec.File(tmp_path / "x"), cachec.WeightSet.from_arrays({}))
