"""A vision transformer: its parameters, and its two functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import layers
import numpy as np
from config import Config


def init(config: Config, seed: int) -> Any:
    """Parameters as nested dicts and lists of NumPy arrays."""
    draw = np.random.default_rng(seed)

    def dense(below: int, above: int) -> Any:
        kernel = draw.normal(0, below**-0.5, (below, above)).astype("f4")
        return {"kernel": kernel, "bias": np.zeros(above, "f4")}

    def norm() -> Any:
        return {"scale": np.ones(config.width, "f4"), "bias": np.zeros(config.width, "f4")}

    def block() -> Any:
        attention = {"qkv": dense(config.width, 3 * config.width), "out": dense(config.width, config.width)}
        up, down = dense(config.width, config.hidden), dense(config.hidden, config.width)
        return {"attention": attention, "first": norm(), "second": norm(), "up": up, "down": down}

    return {
        "patches": dense(config.patch**2 * config.channels, config.width),
        "positions": draw.normal(0, 0.02, (config.patches, config.width)).astype("f4"),
        "blocks": [block() for _ in range(config.depth)],
        "norm": norm(),
        "head": dense(config.width, config.classes),
    }


def forward(config: Config, params: Any, images: Any) -> Any:
    """Logits of images (batch, side, side, channels)."""
    side, size = config.image // config.patch, config.patch
    cut = images.reshape(-1, side, size, side, size, config.channels).transpose(0, 1, 3, 2, 4, 5)
    x = layers.dense(params["patches"], cut.reshape(-1, config.patches, size * size * config.channels))
    x = x + params["positions"]
    for block in params["blocks"]:
        x = layers.block(block, x, config.heads)
    return layers.dense(params["head"], layers.norm(params["norm"], x).mean(1))


def train_step(config: Config, params: Any, moments: Any, images: Any, labels: Any) -> Any:
    """New parameters and moments, by gradient descent with momentum, and the loss before."""

    def loss_of(params: Any) -> Any:
        logits = jax.nn.log_softmax(forward(config, params, images))
        return -jnp.take_along_axis(logits, labels[:, None], 1).mean()

    loss, gradient = jax.value_and_grad(loss_of)(params)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradient)
    return jax.tree.map(lambda p, m: p - config.rate * m, params, moments), moments, loss
