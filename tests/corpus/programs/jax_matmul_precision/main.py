"""The default precision is set at the top, and by a context for one part."""

import re

import jax
import jax.numpy as jnp

import cachec

jax.config.update("jax_default_matmul_precision", "high")

cache = cachec.Cache()


def block(x, w):
    return jax.nn.relu(x @ w) @ w.T


@cache.stage(tools=["jax", "jaxlib"])
def precisions(n):
    text = jax.jit(block).lower(jnp.zeros((n, n)), jnp.zeros((n, 2 * n))).as_text()
    return re.findall(r"precision = \[(\w+), (\w+)\]", text)


if __name__ == "__main__":
    print("RESULT", precisions(4))
    with jax.default_matmul_precision("highest"):
        print("RESULT", precisions(4))
    print("RESULT", precisions(8))
