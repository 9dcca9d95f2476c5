import argparse

import jax
import jax.numpy as jnp
import numpy as np

import cachec

from .config import ModelConfig
from .model import Transformer

cache = cachec.Cache()


@cache.stage(tools=["jax", "jaxlib"])
def build(config: ModelConfig, weights: cachec.WeightSet, shape: tuple[int, int]) -> cachec.File:
    import cachec_jax

    x = jax.ShapeDtypeStruct((*shape, config.dim), jnp.float32)
    return cachec_jax.compile_xla(Transformer(config), weights.placeholders(), x)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="tinyformer")
    parser.add_argument("--config", default="model.json")
    parser.add_argument("--tokens", type=int, default=4)
    args = parser.parse_args(argv)
    config = ModelConfig.from_json(args.config)
    weights = cachec.WeightSet.from_tree(Transformer(config).init(jax.random.key(0)))
    run = cachec.link(build(config, weights, (1, args.tokens)), weights)
    x = np.cos(np.arange(args.tokens * config.dim, dtype=np.float32)).reshape(1, args.tokens, config.dim)
    print("RESULT", np.round(run.numpy(x)[0, -1], 3).tolist())
    return 0
