"""The plugins of JAX, IREE and MLIR under the suite that every plugin inherits: real JAX, real IREE.

The others are beside what else is asked of them; ``test_every_plugin_is_under_the_suite`` finds all.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import cachec
import cachec_iree
import cachec_jax
import cachec_mlir
import cachec_triton
from cachec.testing.conformance import PluginConformance


class _JaxToIree(PluginConformance):
    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        @cache.stage(tools=["jax", "jaxlib"])
        def lower(weights: cachec.WeightSet, factor: float) -> cachec.Program:
            import jax
            import jax.numpy as jnp

            def mlp(w, x):
                y = jnp.tanh(x @ w["up"] + w["bias"]) @ w["down"] * factor * w["zero"]
                return y + w["one"] + w["eight"].sum() - w["nine"].sum()

            return cachec_jax.to_stablehlo(mlp, weights.placeholders(), jax.ShapeDtypeStruct((2, 8), "float32"))

        @cache.stage(tools=["iree-base-compiler"])
        def build(program: cachec.Program) -> cachec.File:
            return cachec_iree.compile(program)

        return lower, build

    def weight_sets(self, folder: Path) -> tuple[cachec.WeightSet, cachec.WeightSet]:
        sets = []
        for seed in (0, 1):
            r = np.random.default_rng(seed)
            shapes = {"up": (8, 16), "bias": (16,), "down": (16, 4)}
            shapes |= {"zero": (), "one": (1,), "eight": (8,), "nine": (9,)}
            # The first biases are all ones: MLIR would print them as a splat, the second ones not (trap 4).
            arrays = {name: np.asarray(r.normal(size=shape), "f4") for name, shape in shapes.items()}
            if seed == 0:
                arrays["bias"] = np.ones(16, "f4")
            save_file(arrays, folder / f"{seed}.safetensors")
            sets.append(cachec.open_weights(folder / f"{seed}.safetensors"))
        return sets[0], sets[1]

    def inputs(self) -> tuple[Any, ...]:
        return (np.linspace(-1, 1, 16, dtype="f4").reshape(2, 8),)


class TestJax(_JaxToIree):
    plugin = cachec_jax.plugin
    compilers = ("jax", "jaxlib")

    def values(self) -> tuple[Any, ...]:
        import jax.numpy as jnp

        return (
            jnp.arange(6.0).reshape(2, 3),
            jnp.arange(6.0),
            jnp.asarray(1.0),
            jnp.array(1.0, jnp.float32),
            jnp.array([1, 2], jnp.bfloat16),
            jnp.zeros((0, 2), bool),
        )

    # These ask nothing of the plugin's own object, and run for IREE's.

    test_small_weights_are_among_them = None
    test_every_weight_is_the_linked_one = None
    test_a_build_reads_no_value = None
    test_weights_of_other_types_and_shapes_are_refused = None
    test_compare_tells_artifacts_apart = None
    test_a_hit_in_a_new_process_imports_no_compiler = None

    @pytest.mark.long
    def test_ambient_is_the_same_after_a_build(self, cache, sets):
        super().test_ambient_is_the_same_after_a_build(cache, sets)

    @pytest.mark.long
    def test_new_weights_hit_and_give_their_own_numbers(self, cache, sets):
        super().test_new_weights_hit_and_give_their_own_numbers(cache, sets)

    @pytest.mark.long
    def test_a_value_that_no_name_stands_for_is_in_the_key(self, cache, sets):
        super().test_a_value_that_no_name_stands_for_is_in_the_key(cache, sets)

    @pytest.mark.long
    def test_weights_that_do_not_fit_are_refused(self, cache, sets):
        super().test_weights_that_do_not_fit_are_refused(cache, sets)

    @pytest.mark.long
    def test_a_warm_result_is_the_cold_one(self, cache, sets):
        """What JAX makes is a program: the same text each time."""
        lower, _ = self.stages(cache)
        weights, _ = sets
        cold, warm = lower(weights, 1.0), lower(weights, 1.0)
        assert cold.text == warm.text == lower.uncached(weights, 1.0).text


@pytest.mark.long
class TestIree(_JaxToIree):
    plugin = cachec_iree.plugin
    compilers = ("iree.compiler", "iree.runtime", "jax")
    runtimes = ("iree.runtime",)

    @pytest.mark.long
    def test_a_warm_result_is_the_cold_one(self, cache, sets):
        super().test_a_warm_result_is_the_cold_one(cache, sets)


class _WithoutStages(PluginConformance):
    """What asks for programs and artifacts of the plugin's own is left out."""

    test_new_weights_hit_and_give_their_own_numbers = None
    test_a_value_that_no_name_stands_for_is_in_the_key = None
    test_small_weights_are_among_them = None
    test_every_weight_is_the_linked_one = None
    test_a_build_reads_no_value = None
    test_weights_of_other_types_and_shapes_are_refused = None
    test_ambient_is_the_same_after_a_build = None
    test_compare_tells_artifacts_apart = None
    test_a_hit_in_a_new_process_imports_no_compiler = None
    test_an_argument_changed_during_the_stage_is_stored_nowhere = None
    test_weights_that_do_not_fit_are_refused = None
    test_a_warm_result_is_the_cold_one = None


class TestMlir(_WithoutStages):
    """Live modules. What is stripped and linked by it goes through IREE here, and through LLVM in ``TestNative``."""

    plugin = cachec_mlir.plugin
    compilers = ("jaxlib", "jax", "iree.compiler")

    def values(self) -> tuple[Any, ...]:
        from cachec_mlir import load, program
        from tests.plugins.mlir.conftest import program as text

        found = [program(each.encode()) for each in (text(0), text(1), text(0).replace("tanh", "sinh"))]
        return tuple(load(each.program, each.weights, bindings="iree") for each in found)


class TestTriton(_WithoutStages):
    """Kernels have no weights, so there is nothing to link; ``test_triton`` asks for the rest, where Triton is."""

    plugin = cachec_triton.plugin
    compilers = ("triton", "torch")


def test_every_plugin_is_under_the_suite() -> None:
    """One that is added to the project comes with a class of its own."""
    found = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        text = path.read_text()
        names = {short: name for name, short in re.findall(r"^import cachec_(\w+) as (\w+)$", text, re.MULTILINE)}
        for name in re.findall(r"^    plugin = (?:(\w+)\.)?plugin$", text, re.MULTILINE):
            found.add(names.get(name, name.removeprefix("cachec_")) or path.parent.name)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert found == set(project["entry-points"]["cachec.plugins"])
