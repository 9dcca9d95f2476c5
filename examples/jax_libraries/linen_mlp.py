"""Flax linen and optax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from common import WIDTHS, Example, main


class Mlp(nn.Module):
    """Dense layers with a normalisation between them."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for width in WIDTHS[1:-1]:
            x = nn.gelu(nn.LayerNorm()(nn.Dense(width)(x)))
        return nn.Dense(WIDTHS[-1])(x)


def build(jit: Callable[..., Any], seed: int) -> Example:
    """state: parameters and the optimiser's state."""
    model, optimiser = Mlp(), optax.adamw(1e-2)
    params = model.init(jax.random.key(seed), jnp.ones((1, WIDTHS[0])))

    @jit
    def step(state: Any, x: Any, y: Any) -> Any:
        params, moments = state
        loss, gradient = jax.value_and_grad(lambda params: ((model.apply(params, x) - y) ** 2).mean())(params)
        updates, moments = optimiser.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    def inference(state: Any) -> Callable[[Any], Any]:
        params, _ = state
        return jit(lambda x: model.apply(params, x))

    return Example((params, optimiser.init(params)), step, inference)


if __name__ == "__main__":
    main(build)
