import jax
import jax.numpy as jnp
import optax

import cachec
from params import init, is_bias, label

cache = cachec.Cache()

optimizer = optax.chain(
    optax.masked(optax.add_decayed_weights(0.1), lambda p: jax.tree.map(lambda b: not b, is_bias(p))),
    optax.multi_transform({"head": optax.sgd(0.1), "body": optax.sgd(0.01)}, label),
)


def loss(params, x):
    h = jnp.tanh(x @ params["body"]["w"] + params["body"]["b"])
    return jnp.mean((h @ params["head"]["w"] + params["head"]["b"] - 1.0) ** 2)


@jax.jit
def update(params, state, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


@cache.stage(tools=["jax", "jaxlib", "optax"])
def train(steps: int) -> list[float]:
    params = init(jax.random.key(0))
    state = optimizer.init(params)
    values = []
    for _ in range(steps):
        params, state, value = update(params, state, jnp.ones((4, 3)))
        values.append(round(float(value), 5))
    return values


if __name__ == "__main__":
    print("RESULT", train(4))
