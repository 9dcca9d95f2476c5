from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import cachec

cache = cachec.Cache()


class SignState(NamedTuple):
    mu: optax.Updates
    count: jax.Array


def scale_by_sign(beta: float) -> optax.GradientTransformation:
    def init(params):
        return SignState(jax.tree.map(jnp.zeros_like, params), jnp.zeros([], jnp.int32))

    def update(updates, state, params=None):
        mu = jax.tree.map(lambda m, u: beta * m + (1 - beta) * u, state.mu, updates)
        return jax.tree.map(jnp.sign, mu), SignState(mu, state.count + 1)

    return optax.GradientTransformation(init, update)


def lion_like(rate, beta=0.9):
    return optax.chain(scale_by_sign(beta), optax.scale(-rate))


@cache.stage(tools=["jax", "jaxlib", "optax"])
def path(rate: float, steps: int) -> np.ndarray:
    optimizer = lion_like(rate)

    def body(carry, _):
        x, state = carry
        updates, state = optimizer.update(jax.grad(lambda v: jnp.sum(jnp.cosh(v)))(x), state)
        x = optax.apply_updates(x, updates)
        return (x, state), x

    x = jnp.array([1.0, -0.3])
    return np.asarray(jax.lax.scan(body, (x, optimizer.init(x)), length=steps)[1])


@cache.stage(tools=["jax", "jaxlib", "optax"])
def state_shapes(optimizer_name: str) -> list[tuple[int, ...]]:
    optimizer = {"lion": lion_like(0.1), "adam": optax.adam(0.1)}[optimizer_name]
    return [leaf.shape for leaf in jax.tree.leaves(optimizer.init(jnp.zeros(3)))]


if __name__ == "__main__":
    print("RESULT", np.round(path(0.1, 5), 3).tolist())
    print("RESULT", state_shapes("lion"), state_shapes("adam"))
