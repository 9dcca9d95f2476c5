"""The two plugins that ship, under the suite that every plugin inherits: real JAX, real IREE."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import cachec
import cachec_iree
import cachec_jax
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
