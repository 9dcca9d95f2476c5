"""Per-example gradient norms: vmap of grad."""

import jax
import jax.numpy as jnp
import numpy as np

import cachec
from losses import LOSSES

cache = cachec.Cache()


def predict(params, x):
    w1, w2 = params
    return jnp.tanh(x @ w1) @ w2


def make_norms(loss_name):
    loss = LOSSES[loss_name]

    def one(params, x, y):
        return loss(predict(params, x), y)

    def norms(params, xs, ys):
        grads = jax.vmap(jax.grad(one), in_axes=(None, 0, 0))(params, xs, ys)
        leaves = jax.tree.leaves(grads)
        return jnp.sqrt(sum(jnp.sum(g.reshape(g.shape[0], -1) ** 2, axis=1) for g in leaves))

    return norms


@cache.stage(tools=["jax", "jaxlib"])
def norms_of(loss_name: str, batch: int) -> np.ndarray:
    key = jax.random.PRNGKey(42)
    k1, k2, k3 = jax.random.split(key, 3)
    params = (jax.random.normal(k1, (5, 8)), jax.random.normal(k2, (8, 2)))
    xs = jax.random.normal(k3, (batch, 5))
    ys = jnp.ones((batch, 2))
    return np.asarray(jax.jit(make_norms(loss_name))(params, xs, ys))


def main():
    for name in sorted(LOSSES):
        print("RESULT", name, np.round(norms_of(name, 3), 3).tolist())


if __name__ == "__main__":
    main()
