"""The two plugins that ship, under the suite that every plugin inherits: real JAX, real IREE."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
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
            def mlp(w, x):
                return jnp.tanh(x @ w["up"] + w["bias"]) @ w["down"] * factor

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
            # The first biases are all ones: MLIR would print them as a splat, the second ones not (trap 4).
            arrays = {name: r.normal(size=shape).astype("f4") for name, shape in shapes.items()}
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
        return (
            jnp.arange(6.0).reshape(2, 3),
            jnp.arange(6.0),
            jnp.asarray(1.0),
            jnp.array(1.0, jnp.float32),
            jnp.array([1, 2], jnp.bfloat16),
            jnp.zeros((0, 2), bool),
        )

    # These three ask nothing of the plugin's own object: for IREE's they run each time.

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

    @pytest.mark.long
    def test_a_warm_result_is_the_cold_one(self, cache, sets):
        super().test_a_warm_result_is_the_cold_one(cache, sets)
