import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import cachec

cache = cachec.Cache()


class Counter(nnx.Variable):
    pass


class Model(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(2, 4, rngs=rngs)
        self.out = nnx.Linear(4, 1, rngs=rngs)
        self.calls = Counter(jnp.array(0))

    def __call__(self, x):
        self.calls[...] += 1
        return self.out(nnx.sigmoid(self.dense(x)))


def loss_fn(model, x, y):
    return ((model(x) - y) ** 2).mean()


@cache.stage(tools=["jax", "jaxlib", "flax", "optax"])
def train(model: Model, steps: int, rate: float) -> tuple[list[float], int]:
    model = nnx.clone(model)
    optimizer = nnx.Optimizer(model, optax.sgd(rate, momentum=0.9), wrt=nnx.Param)
    x = jnp.array([[0, 0], [0, 1], [1, 0], [1, 1]], jnp.float32)
    y = jnp.array([[0], [1], [1], [0]], jnp.float32)

    @nnx.jit
    def step(model, optimizer):
        loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
        optimizer.update(model, grads)
        return loss

    return [round(float(step(model, optimizer)), 4) for _ in range(steps)], int(model.calls[...])


@cache.stage(tools=["jax", "jaxlib", "flax"])
def evaluate(model: Model) -> np.ndarray:
    return np.asarray(model(jnp.ones((1, 2))))


if __name__ == "__main__":
    model = Model(nnx.Rngs(0))
    print("RESULT", train(model, 4, 0.1))
    print("RESULT", np.round(evaluate(nnx.clone(model)), 4).tolist())
