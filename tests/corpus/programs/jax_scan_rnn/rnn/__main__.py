import jax
import jax.numpy as jnp
import numpy as np

import cachec
from rnn import unroll

cache = cachec.Cache()
HIDDEN = 6


@cache.stage(tools=["jax", "jaxlib"])
def compile_rnn(weights: cachec.WeightSet, length: int, features: int) -> cachec.File:
    import cachec_jax

    xs = jax.ShapeDtypeStruct((length, features), jnp.float32)
    return cachec_jax.compile_xla(unroll, weights.placeholders(), xs)


def main():
    rng = np.random.default_rng(7)
    features, length = 3, 10
    params = {
        "wx": rng.normal(size=(features, 4 * HIDDEN)).astype("float32"),
        "wh": rng.normal(size=(HIDDEN, 4 * HIDDEN)).astype("float32"),
        "b": np.zeros(4 * HIDDEN, "float32"),
    }
    weights = cachec.WeightSet.from_tree(params)
    run = cachec.link(compile_rnn(weights, length, features), weights)
    xs = np.sin(np.arange(length * features, dtype="float32")).reshape(length, features)
    print("RESULT", np.round(run.numpy(xs)[-1], 4).tolist())


if __name__ == "__main__":
    main()
