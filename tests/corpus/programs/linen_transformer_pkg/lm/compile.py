"""python -m lm.compile: compile the model for each length."""

import jax
import jax.numpy as jnp
import numpy as np

import cachec

from . import LM, LMConfig

cache = cachec.Cache()
LENGTHS = (4, 6)


@cache.stage(tools=["jax", "jaxlib", "flax"])
def build(config: LMConfig, weights: cachec.WeightSet, length: int) -> cachec.File:
    import cachec_jax

    model = LM(LMConfig(*config))
    tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
    return cachec_jax.compile_xla(model.apply, weights.placeholders(), tokens)


def main():
    config = LMConfig()
    weights = cachec.WeightSet.from_tree(LM(config).init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32)))
    for length in LENGTHS:
        run = cachec.link(build(config, weights, length), weights)
        logits = run.numpy(np.arange(length, dtype=np.int32)[None])
        print("RESULT", length, np.round(logits[0, -1, :4], 3).tolist())


if __name__ == "__main__":
    main()
