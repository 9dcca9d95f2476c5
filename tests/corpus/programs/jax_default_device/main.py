import jax
import jax.numpy as jnp
import numpy as np

import cachec
from pipeline import preprocess

cache = cachec.Cache()


def distance(a, b):
    return jnp.sqrt(((a[:, None] - b[None]) ** 2).sum(-1))


@cache.stage(tools=["jax", "jaxlib"])
def nearest(table: np.ndarray, queries: np.ndarray) -> list[int]:
    d = jax.jit(distance)(jnp.asarray(queries), jnp.asarray(table))
    return jnp.argmin(d, axis=1).tolist()


@cache.stage
def clean(path: str, columns: int) -> np.ndarray:
    return preprocess(np.loadtxt(path, delimiter=",", usecols=range(columns), dtype=np.float32))


if __name__ == "__main__":
    jax.config.update("jax_default_device", jax.devices("cpu")[0])
    table = clean("table.csv", 2)
    print("RESULT", np.round(table, 3).tolist())
    with jax.default_device(jax.devices("cpu")[0]):
        print("RESULT", nearest(table, np.array([[0, 0], [1, 1], [-1, 0.5]], np.float32)))
