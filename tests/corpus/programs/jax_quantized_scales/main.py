"""Scales are folded into the program; the int8 weights stay outside."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import cachec
from quantize import quantize

cache = cachec.Cache()


@cache.stage(tools=["jax", "jaxlib"])
def build(weights: cachec.WeightSet, batch: int) -> cachec.File:
    import cachec_jax

    scale = float(weights["scale"].read())

    def forward(params, x):
        w = params["w"].astype(jnp.float32) * scale
        return x @ w + params["b"]

    x = jax.ShapeDtypeStruct((batch, weights.specs["w"].shape[0]), jnp.float32)
    return cachec_jax.compile_xla(forward, weights.select(["w", "b"]).placeholders(), x)


@cache.stage
def ranges(weights: cachec.WeightSet) -> list[int]:
    w = weights["w"].read()
    return [int(w.min()), int(w.max())]


def main(seed: int) -> None:
    rng = np.random.default_rng(seed)
    q, scale = quantize(rng.normal(size=(6, 4)).astype(np.float32))
    arrays = {"w": q, "b": np.zeros(4, np.float32), "scale": np.asarray(scale, np.float32)}
    weights = cachec.WeightSet.from_arrays(arrays)
    run = cachec.link(build(weights, 2), weights.select(exclude=["scale"]))
    print("RESULT", np.round(run.numpy(np.ones((2, 6), np.float32))[0], 4).tolist(), ranges(weights))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
