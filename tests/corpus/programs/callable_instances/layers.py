import numpy as np


class Dense:
    def __init__(self, inputs, outputs, seed):
        rng = np.random.default_rng(seed)
        self.weight = rng.normal(size=(inputs, outputs)).round(3)
        self.bias = np.arange(outputs, dtype=float)

    def __call__(self, x):
        return x @ self.weight + self.bias


class LeakyRelu:
    def __init__(self, slope=0.1):
        self.slope = slope

    def __call__(self, x):
        return np.where(x > 0, x, self.slope * x)


class Sequential:
    def __init__(self, *layers):
        self.layers = layers

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
