import jax
import jax.numpy as jnp

import cachec
from clip import clip_gradient, leaky

cache = cachec.Cache()


def loss(x):
    return jnp.sum(clip_gradient(leaky(x, 0.3)) ** 3)


@cache.stage(tools=["jax", "jaxlib"])
def gradient(values: list[float]) -> list[float]:
    x = jnp.asarray(values)
    return [round(float(v), 5) for v in jax.jit(jax.grad(loss))(x)]


@cache.stage(tools=["jax", "jaxlib"])
def jaxpr(n: int) -> int:
    return len(jax.make_jaxpr(jax.grad(loss))(jnp.zeros(n)).eqns)


if __name__ == "__main__":
    print("RESULT", gradient([-2.0, -0.5, 0.1, 0.9, 2.0]))
    print("RESULT", jaxpr(4) > 0)
