"""Train a line by gradient descent; flags as absl has them."""

from absl import app, flags

import jax
import jax.numpy as jnp

import cachec

FLAGS = flags.FLAGS
flags.DEFINE_float("learning_rate", 0.1, "Step size.")
flags.DEFINE_integer("steps", 20, "Number of steps.")
flags.DEFINE_enum("loss", "l2", ["l1", "l2"], "Which loss.")

cache = cachec.Cache()


def make_loss(kind):
    def loss(params, x, y):
        residual = params["a"] * x + params["b"] - y
        return jnp.mean(jnp.abs(residual) if kind == "l1" else residual**2)

    return loss


@cache.stage(tools=["jax", "jaxlib"])
def fit(kind: str, steps: int, learning_rate: float) -> dict[str, float]:
    x = jnp.linspace(0, 1, 11)
    y = 3 * x - 1
    grad = jax.grad(make_loss(kind))

    def step(_, params):
        return jax.tree.map(lambda p, g: p - learning_rate * g, params, grad(params, x, y))

    params = jax.jit(lambda p: jax.lax.fori_loop(0, steps, step, p))({"a": 0.0, "b": 0.0})
    return {name: round(float(value), 4) for name, value in params.items()}


def main(argv):
    del argv
    print("RESULT", fit(FLAGS.loss, FLAGS.steps, FLAGS.learning_rate))


if __name__ == "__main__":
    app.run(main)
