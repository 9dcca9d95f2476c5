import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import cachec

cache = cachec.Cache()


class Block(nnx.Module):
    def __init__(self, din, dout, *, rngs):
        self.linear = nnx.Linear(din, dout, rngs=rngs)
        self.norm = nnx.LayerNorm(dout, rngs=rngs)

    def __call__(self, x):
        return nnx.relu(self.norm(self.linear(x)))


class Model(nnx.Module):
    def __init__(self, widths, *, rngs):
        self.blocks = nnx.List([Block(a, b, rngs=rngs) for a, b in zip(widths, widths[1:])])
        self.head = nnx.Linear(widths[-1], 2, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@cache.stage(tools=["jax", "jaxlib", "flax"])
def logits(widths: tuple[int, ...], seed: int) -> np.ndarray:
    model = Model(widths, rngs=nnx.Rngs(seed))
    return np.asarray(nnx.jit(lambda m, x: m(x))(model, jnp.ones((2, widths[0]))))


if __name__ == "__main__":
    for seed in (0, 1):
        print("RESULT", seed, np.round(logits((4, 8, 8), seed), 4).tolist())
