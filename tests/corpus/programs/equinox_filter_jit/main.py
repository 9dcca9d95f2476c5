import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import cachec

cache = cachec.Cache()


class Mixer(eqx.Module):
    token: eqx.nn.Linear
    channel: eqx.nn.MLP
    scale: jax.Array
    residual: bool = eqx.field(static=True)

    def __init__(self, tokens, dim, *, key, residual=True):
        k1, k2 = jax.random.split(key)
        self.token = eqx.nn.Linear(tokens, tokens, key=k1)
        self.channel = eqx.nn.MLP(dim, dim, 2 * dim, 1, key=k2)
        self.scale = jnp.ones(dim)
        self.residual = residual

    def __call__(self, x):
        y = jax.vmap(self.token, in_axes=1, out_axes=1)(x)
        y = jax.vmap(self.channel)(y) * self.scale
        return x + y if self.residual else y


@cache.stage(tools=["jax", "jaxlib", "equinox"])
def evaluate(tokens: int, dim: int, seed: int) -> np.ndarray:
    model = Mixer(tokens, dim, key=jax.random.key(seed))
    x = jnp.arange(tokens * dim, dtype=jnp.float32).reshape(tokens, dim) / 10
    return np.asarray(eqx.filter_jit(model)(x))


if __name__ == "__main__":
    print("RESULT", np.round(evaluate(3, 2, 0), 4).tolist())
    print("RESULT", np.round(evaluate(2, 2, 1), 4).tolist())
