"""Flax nnx and optax: a module is split into its graph, which is static, and its state."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import optax
from common import WIDTHS, Example, main
from flax import nnx


class Mlp(nnx.Module):
    """Dense layers with a normalisation between them."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(below, above, rngs=rngs) for below, above in itertools.pairwise(WIDTHS)])
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for width in WIDTHS[1:-1]])

    def __call__(self, x: Any) -> Any:
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = nnx.gelu(norm(layer(x)))
        return self.layers[-1](x)


def build(jit: Callable[..., Any], seed: int) -> Example:
    """state: of the module, and of the optimiser."""
    graph, params = nnx.split(Mlp(nnx.Rngs(seed)))
    optimiser = optax.adamw(1e-2)

    @jit
    def step(state: Any, x: Any, y: Any) -> Any:
        params, moments = state
        loss, gradient = jax.value_and_grad(lambda params: ((nnx.merge(graph, params)(x) - y) ** 2).mean())(params)
        updates, moments = optimiser.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    def inference(state: Any) -> Callable[[Any], Any]:
        return jit(nnx.merge(graph, state[0]).__call__)  # which closes over the module

    return Example((params, optimiser.init(params)), step, inference)


if __name__ == "__main__":
    main(build)
