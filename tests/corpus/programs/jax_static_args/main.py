import functools

import jax
import jax.numpy as jnp
import numpy as np

import cachec

cache = cachec.Cache()


@functools.partial(jax.jit, static_argnames=("kind", "window"))
def pool(x, *, kind="max", window=2):
    x = x.reshape(-1, window)
    if kind == "max":
        return x.max(axis=1)
    if kind == "mean":
        return x.mean(axis=1)
    raise ValueError(f"no pooling {kind!r}")


@cache.stage(tools=["jax", "jaxlib"])
def pooled(n, kind, window) -> np.ndarray:
    x = jnp.cos(jnp.arange(n, dtype=jnp.float32))
    return np.asarray(pool(x, kind=kind, window=window))


@cache.stage(tools=["jax", "jaxlib"])
def flops(n, window):
    lowered = pool.lower(jax.ShapeDtypeStruct((n,), jnp.float32), window=window)
    return sorted(set(lowered.as_text().split()) & {"stablehlo.reduce(%1", "stablehlo.maximum", "stablehlo.reshape"})


if __name__ == "__main__":
    for kind in ("max", "mean"):
        for window in (2, 4):
            print("RESULT", kind, window, np.round(pooled(8, kind, window), 4).tolist())
    print("RESULT", flops(12, 3))
    try:
        pooled(8, "min", 2)
    except ValueError as error:
        print("RESULT", error)
