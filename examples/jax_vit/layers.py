"""What a transformer is made of: functions of parameters and activations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def dense(p: Any, x: Any) -> Any:
    return x @ p["kernel"] + p["bias"]


def norm(p: Any, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-6) * p["scale"] + p["bias"]


def attention(p: Any, x: Any, heads: int) -> Any:
    """x: (batch, tokens, width)."""
    parts = jnp.split(dense(p["qkv"], x), 3, -1)
    q, k, v = (part.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3) for part in parts)
    weights = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / (x.shape[-1] / heads) ** 0.5, -1)
    return dense(p["out"], (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape))


def block(p: Any, x: Any, heads: int) -> Any:
    x = x + attention(p["attention"], norm(p["first"], x), heads)
    return x + dense(p["down"], jax.nn.gelu(dense(p["up"], norm(p["second"], x))))
