import json
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import cachec

cache = cachec.Cache()


def build_model(options, key):
    options = {**options, "activation": getattr(jax.nn, options["activation"])}
    return eqx.nn.MLP(key=key, **options)


@cache.stage(tools=["jax", "jaxlib", "equinox"])
def compile_model(options: dict, weights: cachec.WeightSet, batch: int) -> cachec.File:
    import cachec_jax

    shapes = eqx.filter_eval_shape(build_model, options, jax.random.key(0))
    arrays, static = eqx.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    structure = jax.tree.structure(arrays)

    def apply(leaves, x):
        return jax.vmap(eqx.combine(jax.tree.unflatten(structure, leaves), static))(x)

    x = jax.ShapeDtypeStruct((batch, options["in_size"]), jnp.float32)
    return cachec_jax.compile_xla(apply, weights.placeholders(), x)


def main(path="options.json"):
    with open(path) as f:
        options = json.load(f)
    for seed in (0, 1):
        arrays, _ = eqx.partition(build_model(options, jax.random.key(seed)), eqx.is_array)
        weights = cachec.WeightSet.from_tree(jax.tree.leaves(arrays))
        run = cachec.link(compile_model(options, weights, 2), weights)
        x = np.array([[0.5, -0.5, 1.0], [0, 0, 0]], np.float32)
        print("RESULT", seed, np.round(np.asarray(run(x)), 4).tolist())


if __name__ == "__main__":
    main(*sys.argv[1:])
