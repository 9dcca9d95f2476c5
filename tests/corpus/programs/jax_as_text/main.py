# No guard: a script as one types it.
import hashlib

import jax
import jax.numpy as jnp

import cachec

cache = cachec.Cache()
SCALE = 0.5


@jax.jit
def attention(q, k, v):
    scores = SCALE * jnp.einsum("bqd,bkd->bqk", q, k)
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v)


@cache.stage(tools=["jax", "jaxlib"])
def lowered_text(batch, length, dim, dtype="float32"):
    s = jax.ShapeDtypeStruct((batch, length, dim), dtype)
    return attention.lower(s, s, s).as_text()


for dtype in ["float32", "bfloat16"]:
    text = lowered_text(2, 8, 16, dtype)
    print("RESULT", dtype, len(text), hashlib.sha256(text.encode()).hexdigest()[:12])
