import math

import jax
import jax.numpy as jnp


def layer_norm(x, eps=1e-5):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)


def attention(p, x, config):
    b, t, d = x.shape
    q, k, v = (jnp.reshape(x @ p[n], (b, t, config.heads, -1)) for n in ("q", "k", "v"))
    logits = jnp.einsum("bthd,bshd->bhts", q, k) / math.sqrt(d // config.heads)
    if config.causal:
        logits = jnp.where(jnp.tril(jnp.ones((t, t), bool)), logits, -1e9)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(logits), v).reshape(b, t, d) @ p["o"]


def block(p, x, config):
    x = x + attention(p["attention"], layer_norm(x), config)
    return x + jax.nn.gelu(layer_norm(x) @ p["up"]) @ p["down"]
