from flax import nnx


class MLP(nnx.Module):
    def __init__(self, sizes, *, rngs):
        self.layers = nnx.List(nnx.Linear(a, b, rngs=rngs) for a, b in zip(sizes, sizes[1:]))

    def __call__(self, x):
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return x


class Conv1d(nnx.Module):
    kernel = 3

    def __init__(self, channels, out, *, rngs):
        self.conv = nnx.Conv(channels, out, kernel_size=(self.kernel,), rngs=rngs)
        self.dropout = nnx.Dropout(0.5, deterministic=True)

    def __call__(self, x):
        return self.dropout(self.conv(x)).mean(axis=1)
