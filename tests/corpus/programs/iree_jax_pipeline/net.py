import jax.numpy as jnp

WIDTH = 6


def parameters(rng):
    return {
        "w1": rng.normal(size=(WIDTH, WIDTH)).astype("float32"),
        "w2": rng.normal(size=(WIDTH, 2)).astype("float32"),
    }


def forward(p, x):
    return jnp.maximum(x @ p["w1"], 0.0) @ p["w2"]
