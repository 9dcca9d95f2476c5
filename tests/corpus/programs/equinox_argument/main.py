import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import cachec
from model import make

cache = cachec.Cache()


@eqx.filter_value_and_grad
def loss(model, x, y):
    pred = jax.vmap(model)(x)
    return jnp.mean((pred - y) ** 2)


@cache.stage(tools=["jax", "jaxlib", "equinox", "optax"])
def fit(model: eqx.Module, steps: int, rate: float) -> list[float]:
    optimizer = optax.adam(rate)
    state = optimizer.init(eqx.filter(model, eqx.is_array))
    x = jnp.linspace(-1, 1, 8)[:, None]
    y = jnp.exp(x)

    @eqx.filter_jit
    def step(model, state):
        value, grads = loss(model, x, y)
        updates, state = optimizer.update(grads, state, model)
        return eqx.apply_updates(model, updates), state, value

    values = []
    for _ in range(steps):
        model, state, value = step(model, state)
        values.append(round(float(value), 4))
    return values


@cache.stage(tools=["jax", "jaxlib", "equinox"])
def count(model: eqx.Module) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array)))


def main():
    model = make(jax.random.key(0))
    print("RESULT", count(model), fit(model, 5, 0.01))


if __name__ == "__main__":
    main()
