import jax
import jax.numpy as jnp
import numpy as np

import cachec

cache = cachec.Cache()


def glorot(key, shape):
    bound = jnp.sqrt(6 / (shape[0] + shape[1]))
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


@cache.stage(tools=["jax", "jaxlib"])
def initial(seed: int, sizes: tuple[int, ...]) -> dict[str, np.ndarray]:
    keys = jax.random.split(jax.random.key(seed), len(sizes) - 1)
    return {
        f"layer{i}": np.asarray(glorot(key, shape))
        for i, (key, shape) in enumerate(zip(keys, zip(sizes, sizes[1:])))
    }


@cache.stage(tools=["jax", "jaxlib"])
def shuffle(key: jax.Array, n: int) -> list[int]:
    return [int(i) for i in jax.random.permutation(key, n)]


def main(seed=2):
    for name, w in initial(seed, (3, 4, 2)).items():
        print("RESULT", name, w.shape, round(float(w.sum()), 5))
    print("RESULT", shuffle(jax.random.PRNGKey(seed), 6))


if __name__ == "__main__":
    main()
