import jax
import jax.numpy as jnp
import numpy as np

import cachec
import parallel

cache = cachec.Cache()


def loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def sgd(w, x, y, rate=0.1):
    value, grad = jax.value_and_grad(loss)(w, x, y)
    return value, w - rate * grad


@cache.stage(tools=["jax", "jaxlib"])
def compiled_step(rows: int, features: int):
    x = jax.ShapeDtypeStruct((rows, features), jnp.float32)
    w = jax.ShapeDtypeStruct((features,), jnp.float32)
    y = jax.ShapeDtypeStruct((rows,), jnp.float32)
    step = jax.jit(
        sgd,
        in_shardings=(parallel.replicated, parallel.by_batch, parallel.by_batch),
        out_shardings=(parallel.replicated, parallel.replicated),
    )
    return step.lower(w, x, y).compile()


if __name__ == "__main__":
    step = compiled_step(6, 2)
    rng = np.random.default_rng(3)
    w = jax.device_put(np.zeros(2, np.float32), parallel.replicated)
    x = jax.device_put(rng.normal(size=(6, 2)).astype(np.float32), parallel.by_batch)
    y = jax.device_put(np.arange(6, dtype=np.float32), parallel.by_batch)
    for _ in range(3):
        value, w = step(w, x, y)
    print("RESULT", np.round(np.asarray(w), 4).tolist(), round(float(value), 4))
