import jax.numpy as jnp

LENGTH_SCALE = 1.5


def gaussian(x):
    d2 = jnp.sum((x[:, None] - x[None]) ** 2, axis=-1)
    return jnp.exp(-d2 / (2 * LENGTH_SCALE**2))
