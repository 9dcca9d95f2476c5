import jax
import jax.numpy as jnp

import cachec

cache = cachec.Cache()


class Experiment:
    width = 4
    activation = staticmethod(jnp.tanh)
    seed = 0

    def features(self, x):
        raise NotImplementedError

    def forward(self, x):
        x = self.features(x)
        w = jax.random.normal(jax.random.key(self.seed), (x.shape[-1], self.width))
        return self.activation(x @ w).sum()

    def run(self, width):
        return _evaluate(type(self), width)


@cache.stage(tools=["jax", "jaxlib"])
def _evaluate(cls: type, width: int) -> float:
    return round(float(jax.jit(cls().forward)(jnp.linspace(0, 1, width))), 4)
