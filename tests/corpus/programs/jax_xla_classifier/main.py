import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import cachec

cache = cachec.Cache()


@dataclass(frozen=True)
class Config:
    width: int = 16
    depth: int = 2
    classes: int = 3
    residual: bool = True


def init(config, key):
    params = {}
    for i in range(config.depth):
        key, sub = jax.random.split(key)
        params[f"dense_{i}"] = jax.random.normal(sub, (config.width, config.width)) / jnp.sqrt(config.width)
    params["head"] = jax.random.normal(key, (config.width, config.classes))
    return params


def forward(config, params, x):
    for i in range(config.depth):
        h = jax.nn.gelu(x @ params[f"dense_{i}"])
        x = x + h if config.residual else h
    return jax.nn.softmax(x @ params["head"])


@cache.stage(tools=["jax", "jaxlib"])
def build(config: Config, weights: cachec.WeightSet, batch: int) -> cachec.File:
    import cachec_jax

    x = jax.ShapeDtypeStruct((batch, config.width), "float32")
    return cachec_jax.compile_xla(functools.partial(forward, config), weights.placeholders(), x)


if __name__ == "__main__":
    config = Config()
    x = np.linspace(-1, 1, 4 * config.width, dtype=np.float32).reshape(4, -1)
    for seed in (0, 1):
        weights = cachec.WeightSet.from_tree(init(config, jax.random.key(seed)))
        run = cachec.link(build(config, weights, 4), weights)
        print("RESULT", seed, np.round(run.numpy(x), 4).tolist())
