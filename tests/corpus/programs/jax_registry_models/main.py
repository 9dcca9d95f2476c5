import jax
import jax.numpy as jnp
import numpy as np

import cachec
import models

cache = cachec.Cache()


@cache.stage(tools=["jax", "jaxlib"])
def features(name: str, width: int) -> np.ndarray:
    model = models.create(name, width=width)
    x = jnp.linspace(0, 1, 3)
    return np.asarray(jax.jit(model)(x))


if __name__ == "__main__":
    for name in models.names():
        print("RESULT", name, np.round(features(name, 4), 4).tolist())
