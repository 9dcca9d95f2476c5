import jax
import jax.numpy as jnp

import cachec
import ginlike
from model import mlp

cache = cachec.Cache()


@cache.stage(tools=["jax", "jaxlib"])
def program(batch: int) -> tuple[list[int], float]:
    x = jnp.linspace(-1, 1, batch * 4).reshape(batch, 4)
    y = jax.jit(mlp)(x)
    return list(y.shape), round(float(y.sum()), 4)


def main():
    ginlike.parse_file("train.gin")
    print("RESULT", program(2))


if __name__ == "__main__":
    main()
