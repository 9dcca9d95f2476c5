import sys

import jax
import jax.numpy as jnp
import optax

import cachec
from compose import compose, instantiate

cache = cachec.Cache()


@cache.stage(tools=["jax", "jaxlib", "optax"])
def train(config: dict) -> list[float]:
    model = instantiate(config["model"])
    optimizer = instantiate(config["optimizer"])
    params = model.init(jax.random.key(config["seed"]))
    state = optimizer.init(params)
    x = jnp.linspace(-1, 1, 9)[:, None]
    losses = []
    for _ in range(config["steps"]):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((model(p, x) - x**2) ** 2))(params)
        updates, state = optimizer.update(grads, state)
        params = optax.apply_updates(params, updates)
        losses.append(round(float(loss), 4))
    return losses


def main():
    print("RESULT", train(compose(overrides=sys.argv[1:])))
    print("RESULT", train(compose(overrides=["model=poly", "optimizer=adam"])))


if __name__ == "__main__":
    main()
