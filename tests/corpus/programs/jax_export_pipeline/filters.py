import jax.numpy as jnp

KERNEL = (0.25, 0.5, 0.25)


def smooth(x):
    padded = jnp.pad(x, ((0, 0), (1, 1)), mode="edge")
    return sum(k * padded[:, i : i + x.shape[1]] for i, k in enumerate(KERNEL))
