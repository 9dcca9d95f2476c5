import jax
import jax.numpy as jnp

HIDDEN = 5


def init(key):
    a, b = jax.random.split(key)
    return {
        "body": {"w": jax.random.normal(a, (3, HIDDEN)), "b": jnp.zeros(HIDDEN)},
        "head": {"w": jax.random.normal(b, (HIDDEN, 1)), "b": jnp.zeros(1)},
    }


def is_bias(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "b", params)


def label(params):
    return {name: name for name in params}
