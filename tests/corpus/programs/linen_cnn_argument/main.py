import functools
import hashlib

import jax
import jax.numpy as jnp
from flax import linen as nn

import cachec
from cnn import CNN, Block

cache = cachec.Cache()


@cache.stage(tools=["jax", "jaxlib", "flax"])
def lower(model: nn.Module, size: int) -> str:
    x = jax.ShapeDtypeStruct((1, size, size, 1), jnp.float32)
    variables = jax.eval_shape(model.init, jax.random.key(0), x)
    return jax.jit(model.apply).lower(variables, x).as_text()


@cache.stage(tools=["jax", "jaxlib", "flax"])
def parameter_count(model: nn.Module, size: int) -> int:
    variables = jax.eval_shape(model.init, jax.random.key(0), jnp.ones((1, size, size, 1)))
    return sum(leaf.size for leaf in jax.tree.leaves(variables))


def main():
    for model in (CNN(widths=(4, 8)), CNN(widths=(4,), block=functools.partial(Block, kernel=5))):
        text = lower(model, 8)
        print("RESULT", hashlib.sha256(text.encode()).hexdigest()[:12], text.count("convolution"), parameter_count(model, 8))


if __name__ == "__main__":
    main()
