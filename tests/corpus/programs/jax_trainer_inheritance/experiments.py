import jax.numpy as jnp
import jax

from base import Experiment


class Plain(Experiment):
    def features(self, x):
        return x


class Squared(Plain):
    width = 6

    def features(self, x):
        return super().features(x) ** 2


class Fourier(Experiment):
    activation = staticmethod(jax.nn.relu)
    frequency = 3.0

    def features(self, x):
        return jnp.sin(self.frequency * x)


EXPERIMENTS = {cls.__name__.lower(): cls for cls in (Plain, Squared, Fourier)}
