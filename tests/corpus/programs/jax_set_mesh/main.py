import re

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import cachec

cache = cachec.Cache()
SPEC = P("data", None)


@jax.jit
def layer(x, w):
    y = x @ w
    return jax.lax.with_sharding_constraint(jnp.tanh(y), SPEC)


@cache.stage(tools=["jax", "jaxlib"])
def lower_layer(rows: int, columns: int) -> str:
    x = jax.ShapeDtypeStruct((rows, columns), jnp.float32)
    w = jax.ShapeDtypeStruct((columns, columns), jnp.float32)
    return layer.lower(x, w).as_text()


def main():
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    jax.set_mesh(mesh)
    text = lower_layer(8, 4)
    print("RESULT", re.findall(r"sdy.mesh @\w+ = <(.*)>", text), re.findall(r"sharding_constraint .* <(.*)>", text))
    print("RESULT", "tanh" in text, text.count("stablehlo."))


main()
