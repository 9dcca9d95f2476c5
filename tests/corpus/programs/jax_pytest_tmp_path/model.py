import jax.numpy as jnp

CONFIG = {"inputs": 5, "hidden": 7, "outputs": 3}


def make_params(rng):
    return {
        "up": rng.normal(size=(CONFIG["inputs"], CONFIG["hidden"])).astype("float32"),
        "down": rng.normal(size=(CONFIG["hidden"], CONFIG["outputs"])).astype("float32"),
    }


def apply(params, x):
    return jnp.maximum(x @ params["up"], 0) @ params["down"]
