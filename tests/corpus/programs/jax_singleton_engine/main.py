import os

import jax.numpy as jnp

import cachec
from engine import Engine

cache = cachec.Cache()


def recurrence(x):
    gain = float(os.environ.get("GAIN", "1.5"))
    return gain * jnp.cumsum(x) - x


@cache.stage(tools=["jax", "jaxlib"])
def apply(n: int, times: int) -> list[float]:
    x = jnp.arange(1.0, n + 1)
    for _ in range(times):
        x = Engine.get().compile(recurrence, x)(x)
    return [round(float(v), 3) for v in x]


if __name__ == "__main__":
    print("RESULT", apply(3, 1))
    print("RESULT", apply(4, 2))
    print("RESULT", apply(3, 2))
