import equinox as eqx
import jax


class Field(eqx.Module):
    mlp: eqx.nn.MLP

    def __init__(self, dim, *, key):
        self.mlp = eqx.nn.MLP(dim, dim, 8, 1, activation=jax.nn.softplus, key=key)

    def __call__(self, t, y):
        return self.mlp(y) - 0.1 * t * y
