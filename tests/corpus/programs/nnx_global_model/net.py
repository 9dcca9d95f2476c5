from flax import nnx


class Net(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs):
        self.up = nnx.Linear(3, width, rngs=rngs)
        self.down = nnx.Linear(width, 1, use_bias=False, rngs=rngs)
        self.scale = nnx.Param(nnx.initializers.ones(rngs.params(), (1,)))

    def __call__(self, x):
        return self.scale * self.down(nnx.tanh(self.up(x)))


def make_model(seed, width=5):
    return Net(width, nnx.Rngs(seed))
