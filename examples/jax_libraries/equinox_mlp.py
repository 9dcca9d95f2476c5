"""Equinox and optax: a module is a tree, of which the arrays are one part and everything else the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import optax
from common import WIDTHS, Example, main


class Mlp(eqx.Module):
    """Dense layers with a normalisation between them."""

    layers: list[Any]
    norms: list[Any]

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, len(WIDTHS) - 1)
        pairs = zip(WIDTHS[:-1], WIDTHS[1:], keys, strict=True)
        self.layers = [eqx.nn.Linear(below, above, key=each) for below, above, each in pairs]
        self.norms = [eqx.nn.LayerNorm(width) for width in WIDTHS[1:-1]]

    def __call__(self, x: Any) -> Any:
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = jax.nn.gelu(norm(layer(x)))
        return self.layers[-1](x)


def build(jit: Callable[..., Any], seed: int) -> Example:
    """state: the module's arrays, and the optimiser's state."""
    params, static = eqx.partition(Mlp(jax.random.key(seed)), eqx.is_array)
    optimiser = optax.adamw(1e-2)

    @jit
    def step(state: Any, x: Any, y: Any) -> Any:
        params, moments = state

        def loss_of(params: Any) -> Any:
            return ((jax.vmap(eqx.combine(params, static))(x) - y) ** 2).mean()

        loss, gradient = jax.value_and_grad(loss_of)(params)
        updates, moments = optimiser.update(gradient, moments, params)
        return (eqx.apply_updates(params, updates), moments), loss

    def inference(state: Any) -> Callable[[Any], Any]:
        model = eqx.combine(state[0], static)
        return jit(jax.vmap(model))  # which closes over the module

    return Example((params, optimiser.init(params)), step, inference)


if __name__ == "__main__":
    main(build)
