from flax import nnx

from . import layers

ZOO = {
    "mlp": lambda rngs: layers.MLP((3, 8, 2), rngs=rngs),
    "conv": lambda rngs: layers.Conv1d(3, 4, rngs=rngs),
}
INPUTS = {"mlp": (1, 3), "conv": (1, 8, 3)}


def build(name, seed=0):
    return ZOO[name](nnx.Rngs(seed))
