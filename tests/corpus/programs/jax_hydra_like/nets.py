from dataclasses import dataclass

import jax
import jax.numpy as jnp


@dataclass
class MLP:
    hidden: int

    def init(self, key):
        a, b = jax.random.split(key)
        return {"a": jax.random.normal(a, (1, self.hidden)), "b": jax.random.normal(b, (self.hidden, 1))}

    def __call__(self, p, x):
        return jnp.tanh(x @ p["a"]) @ p["b"]


@dataclass
class Polynomial:
    degree: int

    def init(self, key):
        return jax.random.normal(key, (self.degree + 1,))

    def __call__(self, p, x):
        return jnp.polyval(p, x)
