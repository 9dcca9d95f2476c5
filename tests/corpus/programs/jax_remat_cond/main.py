import hashlib
import re

import jax
import jax.numpy as jnp

import cachec

cache = cachec.Cache()

REMAT = True
POLICY = jax.checkpoint_policies.dots_saveable


def layer(x, w):
    return jax.lax.cond(x.sum() > 0, lambda v: jnp.tanh(v @ w), lambda v: v @ w, x)


def network(ws, x):
    body = jax.checkpoint(layer, policy=POLICY) if REMAT else layer
    for w in ws:
        x = body(x, w)
    return (x**2).sum()


@cache.stage(tools=["jax", "jaxlib"])
def gradient_program(depth: int, width: int) -> dict[str, object]:
    ws = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * depth
    x = jax.ShapeDtypeStruct((width,), jnp.float32)
    text = jax.jit(jax.grad(network)).lower(ws, x).as_text()
    return {
        "dots": len(re.findall("dot_general", text)),
        "barriers": text.count("optimization_barrier"),
        "digest": hashlib.sha256(text.encode()).hexdigest()[:10],
    }


if __name__ == "__main__":
    for depth in (1, 2):
        print("RESULT", depth, gradient_program(depth, 4))
