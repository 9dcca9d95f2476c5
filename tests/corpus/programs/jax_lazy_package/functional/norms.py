import jax.numpy as jnp

START = 0.5


def _vector(n):
    return jnp.arange(n) + START


def l1_norm(n):
    return jnp.abs(_vector(n)).sum()


def l2_norm(n):
    return jnp.sqrt((_vector(n) ** 2).sum())
