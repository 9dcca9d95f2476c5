# The model is a global; its state goes through the stage's weights.
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import cachec
from net import make_model

cache = cachec.Cache()
model = make_model(seed=0)
graph, state = nnx.split(model)


def apply(params, x):
    return nnx.merge(graph, params)(x)


@cache.stage(tools=["jax", "jaxlib", "flax"])
def lower(batch: int) -> str:
    x = jax.ShapeDtypeStruct((batch, 3), jnp.float32)
    return jax.jit(apply).lower(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), state), x).as_text()


@cache.stage(tools=["jax", "jaxlib", "flax"])
def predict(batch: int) -> np.ndarray:
    return np.asarray(model(jnp.ones((batch, 3))))


text = lower(2)
print("RESULT", text.count("dot_general"), len(text))
print("RESULT", np.round(predict(2), 4).tolist())
