from absl import app
from absl import flags
import jax
import jax.numpy as jnp

import cachec

_WIDTH = flags.DEFINE_integer("width", 8, "width of the hidden layer")
_DTYPE = flags.DEFINE_string("dtype", "float32", "dtype of all arrays")

cache = cachec.Cache()


def hidden(x):
    w = jnp.ones((x.shape[-1], _WIDTH.value), _DTYPE.value)
    return jnp.tanh(x @ w)


@cache.stage(tools=["jax", "jaxlib"])
def shapes(batch: int) -> str:
    x = jax.ShapeDtypeStruct((batch, 3), _DTYPE.value)
    return str(jax.eval_shape(hidden, x))


def main(_):
    for batch in (1, 4):
        print("RESULT", shapes(batch))


if __name__ == "__main__":
    app.run(main)
