from collections.abc import Callable

import jax.numpy as jnp
from flax import linen as nn


class Block(nn.Module):
    width: int = 4
    kernel: int = 3
    act: Callable = nn.relu

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(self.width, (self.kernel, self.kernel))(x)
        x = nn.GroupNorm(num_groups=2)(x)
        return self.act(x)


class CNN(nn.Module):
    widths: tuple
    block: Callable = Block

    @nn.compact
    def __call__(self, x):
        for w in self.widths:
            x = self.block(w)(x)
            x = nn.avg_pool(x, (2, 2), strides=(2, 2))
        return nn.Dense(3)(jnp.mean(x, axis=(1, 2)))
