"""Lower a small MLP to StableHLO, weights outside."""

import hashlib

import numpy as np

import cachec
from layers import forward, init

cache = cachec.Cache()
SIZES = (8, 16, 4)


@cache.stage(tools=["jax", "jaxlib"])
def lower(weights: cachec.WeightSet, batch: int) -> cachec.Program:
    import jax

    from cachec_jax import to_stablehlo

    x = jax.ShapeDtypeStruct((batch, SIZES[0]), "float32")
    return to_stablehlo(forward, weights.placeholders(), x)


def main():
    weights = cachec.WeightSet.from_tree(init(np.random.default_rng(0), SIZES))
    for batch in (1, 32):
        program = lower(weights, batch)
        print("RESULT", batch, program.format, hashlib.sha256(program.ir).hexdigest()[:16])


if __name__ == "__main__":
    main()
