"""Three kinds of a small JAX model: what the machines of the cluster compile."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import cachec

cache = cachec.Cache()

LAYERS = {"small": 2, "medium": 4, "large": 8}


@cache.stage(tools=["jax", "jaxlib"])
def lowered(size: str, batch: int) -> str:
    """The model as StableHLO text. size: of LAYERS; batch: rows of the input."""

    def model(x: jax.Array, weights: jax.Array) -> jax.Array:
        for index in range(LAYERS[size]):
            x = jax.nn.gelu(x @ weights[index])
        return x

    shapes = (jnp.zeros((batch, 64)), jnp.zeros((LAYERS[size], 64, 64)))
    return jax.jit(model).lower(*shapes).as_text()


def warm(size: str, batch: int) -> None:
    lowered(size, batch)
