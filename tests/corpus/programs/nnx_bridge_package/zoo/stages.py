import jax
import jax.numpy as jnp
from flax import nnx

import cachec

from . import INPUTS, build

cache = cachec.Cache()


@cache.stage(tools=["jax", "jaxlib", "flax"])
def parameter_table(name: str) -> dict[str, int]:
    model = nnx.eval_shape(lambda: build(name))
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path): leaf.size for path, leaf in leaves}


@cache.stage(tools=["jax", "jaxlib", "flax"])
def flat_text(name: str) -> str:
    graph, params, rest = nnx.split(build(name), nnx.Param, ...)

    def apply(params, x):
        return nnx.merge(graph, params, rest)(x)

    return jax.jit(apply).lower(params, jax.ShapeDtypeStruct(INPUTS[name], jnp.float32)).as_text()
