import jax
import jax.numpy as jnp

from tinyformer import nn
from tinyformer.config import ModelConfig


class Transformer:
    """Holds the configuration; parameters are passed."""

    def __init__(self, config: ModelConfig):
        self.config = config

    def init(self, key):
        d = self.config.dim
        layers = []
        for _ in range(self.config.layers):
            key, *subs = jax.random.split(key, 7)
            w = [jax.random.normal(s, (d, d)) * d**-0.5 for s in subs]
            layers.append({"attention": dict(zip("qkvo", w)), "up": w[4], "down": w[5]})
        return {"layers": layers}

    def __call__(self, params, x):
        for p in params["layers"]:
            x = nn.block(p, x, self.config)
        return nn.layer_norm(x)
