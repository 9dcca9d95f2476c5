"""Exports go through files, as the deployment has them."""

import numpy as np
import pytest

import cachec
from model import CONFIG, apply, make_params


@pytest.fixture
def cache():
    return cachec.Cache()


@pytest.fixture
def checkpoint(tmp_path):
    weights = cachec.WeightSet.from_arrays(make_params(np.random.default_rng(0)))
    path = tmp_path / "model.safetensors"
    weights.save(path)
    return cachec.open_weights(path)


def test_round_trip(cache, checkpoint):
    @cache.stage(tools=["jax", "jaxlib"])
    def build(weights: cachec.WeightSet, batch: int) -> cachec.File:
        import jax

        import cachec_jax

        x = jax.ShapeDtypeStruct((batch, CONFIG["inputs"]), "float32")
        return cachec_jax.compile_xla(apply, weights.placeholders(), x)

    run = cachec.link(build(checkpoint, 2), checkpoint)
    y = run.numpy(np.ones((2, CONFIG["inputs"]), np.float32))
    print()
    print("RESULT", np.round(y, 3).tolist())


@pytest.mark.parametrize("batch", [1, 3])
def test_shapes(cache, checkpoint, batch):
    @cache.stage(tools=["jax", "jaxlib"])
    def shape_of(weights: cachec.WeightSet, batch: int) -> tuple[int, ...]:
        import jax

        specs = {k: jax.ShapeDtypeStruct(v.shape, "float32") for k, v in weights.specs.items()}
        return jax.eval_shape(apply, specs, jax.ShapeDtypeStruct((batch, CONFIG["inputs"]), "float32")).shape

    print()
    print("RESULT", batch, shape_of(checkpoint, batch))
