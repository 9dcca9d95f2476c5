import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import cachec

cache = cachec.Cache()


@functools.partial(jax.tree_util.register_dataclass, data_fields=["mean", "scale"], meta_fields=["name", "eps"])
@dataclasses.dataclass
class Normalizer:
    mean: jax.Array
    scale: jax.Array
    name: str = "train"
    eps: float = 1e-3

    def __call__(self, x):
        return (x - self.mean) / (self.scale + self.eps)

    def inverse(self, y):
        return y * (self.scale + self.eps) + self.mean


def reconstruction(norm, x):
    y = jnp.round(norm(x) * 4) / 4
    return norm.inverse(y)


@cache.stage(tools=["jax", "jaxlib"])
def compile_it(weights: cachec.WeightSet, shape: tuple[int, int]) -> cachec.File:
    import cachec_jax

    return cachec_jax.compile_xla(reconstruction, weights.placeholders(), jax.ShapeDtypeStruct(shape, jnp.float32))


def main():
    data = np.random.default_rng(0).normal(2.0, 3.0, size=(20, 3)).astype(np.float32)
    norm = Normalizer(jnp.asarray(data.mean(0)), jnp.asarray(data.std(0)))
    weights = cachec.WeightSet.from_tree(norm)
    run = cachec.link(compile_it(weights, (2, 3)), weights)
    print("RESULT", np.round(np.asarray(run(data[:2])), 4).tolist())


if __name__ == "__main__":
    main()
