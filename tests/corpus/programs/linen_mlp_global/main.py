import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import cachec

cache = cachec.Cache()


class MLP(nn.Module):
    features: tuple[int, ...]
    dropout: float = 0.1

    @nn.compact
    def __call__(self, x, train: bool = False):
        for f in self.features[:-1]:
            x = nn.relu(nn.Dense(f)(x))
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return nn.Dense(self.features[-1])(x)


model = MLP(features=(16, 8, 2))


@cache.stage(tools=["jax", "jaxlib", "flax"])
def build(weights: cachec.WeightSet, batch: int) -> cachec.File:
    import cachec_jax

    return cachec_jax.compile_xla(model.apply, weights.placeholders(), jax.ShapeDtypeStruct((batch, 4), jnp.float32))


if __name__ == "__main__":
    params = model.init(jax.random.key(0), jnp.ones((1, 4)))
    weights = cachec.WeightSet.from_tree(params)
    run = cachec.link(build(weights, 3), weights)
    print("RESULT", np.round(run.numpy(np.ones((3, 4), np.float32) * np.arange(3, dtype=np.float32)[:, None]), 4).tolist())
