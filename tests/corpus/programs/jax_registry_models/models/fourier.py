import jax.numpy as jnp

from .registry import register


@register("fourier")
class Fourier:
    base = 2.0

    def __init__(self, width=4):
        self.width = width

    def __call__(self, x):
        freqs = self.base ** jnp.arange(self.width // 2)
        angles = x[..., None] * freqs
        return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
