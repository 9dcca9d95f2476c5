import equinox as eqx
import jax


def make(key, width=6):
    k1, k2 = jax.random.split(key)
    return eqx.nn.Sequential(
        [
            eqx.nn.Linear(1, width, key=k1),
            eqx.nn.Lambda(jax.nn.tanh),
            eqx.nn.LayerNorm(width),
            eqx.nn.Linear(width, 1, key=k2),
        ]
    )
