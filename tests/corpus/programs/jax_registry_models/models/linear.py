import jax.numpy as jnp

from .registry import register


@register("linear")
class Linear:
    scale = 1.0

    def __init__(self, width=4):
        self.width = width

    def __call__(self, x):
        w = jnp.arange(x.shape[-1] * self.width, dtype=x.dtype).reshape(-1, self.width)
        return self.scale * x @ w
