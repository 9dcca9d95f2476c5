from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

import cachec

cache = cachec.Cache()
BUCKETS = [4, 8, 16]


def encode(tokens):
    positions = jnp.arange(tokens.shape[0])
    table = jnp.sin(positions[:, None] / 10.0 ** jnp.arange(4))
    return (table * (tokens[:, None] + 1)).sum(axis=0)


@cache.stage(tools=["jax", "jaxlib"])
def compile_bucket(length: int):
    return jax.jit(encode).lower(jax.ShapeDtypeStruct((length,), jnp.float32)).compile()


@cache.stage(tools=["jax", "jaxlib"])
def compile_sizes(lengths: list[int]) -> list[tuple[int, int]]:
    """Lowers all lengths in threads of its own."""

    def size(length):
        return len(jax.jit(encode).lower(jax.ShapeDtypeStruct((length,), jnp.float32)).as_text())

    with ThreadPoolExecutor(2) as pool:
        return list(zip(lengths, pool.map(size, lengths)))


def main():
    with ThreadPoolExecutor(3) as pool:
        compiled = dict(zip(BUCKETS, pool.map(compile_bucket, BUCKETS)))
    for length in BUCKETS:
        print("RESULT", length, np.round(np.asarray(compiled[length](jnp.arange(length, dtype=jnp.float32))), 3).tolist())
    print("RESULT", compile_sizes([2, 300]))


main()
