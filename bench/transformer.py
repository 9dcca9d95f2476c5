"""A transformer in plain JAX, for what tracing and lowering a model costs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

_WIDTH, _LENGTH, _HEADS = 64, 16, 4


def _normal(x: Any, scale: Any, shift: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def _attention(x: Any, block: dict[str, Any]) -> Any:
    def heads(name: str) -> Any:
        return (x @ block[name]).reshape(_LENGTH, _HEADS, -1).transpose(1, 0, 2)

    scores = heads("query") @ heads("key").transpose(0, 2, 1) / jnp.sqrt(_WIDTH // _HEADS)
    scores = jnp.where(jnp.tril(jnp.ones((_LENGTH, _LENGTH), bool)), scores, -1e9)
    mixed = jax.nn.softmax(scores, -1) @ heads("value")
    return mixed.transpose(1, 0, 2).reshape(_LENGTH, _WIDTH) @ block["out"]


def _model(blocks: list[dict[str, Any]], x: Any) -> Any:
    for block in blocks:
        x = x + _attention(_normal(x, block["scale"], block["shift"]), block)
        x = x + jax.nn.gelu(_normal(x, block["scale"], block["shift"]) @ block["up"]) @ block["down"]
    return x


def traced(blocks: int) -> Any:
    """The model of so many blocks, traced: the part of lowering that is Python's alone."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("query", "key", "value", "out"), (_WIDTH, _WIDTH))
    shapes |= {"scale": (_WIDTH,), "shift": (_WIDTH,), "up": (_WIDTH, 4 * _WIDTH), "down": (4 * _WIDTH, _WIDTH)}
    block = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    x = jax.ShapeDtypeStruct((_LENGTH, _WIDTH), jnp.float32)
    return jax.jit(_model).trace([block] * blocks, x)


def lowered(blocks: int) -> str:
    """The same as StableHLO."""
    text: str = traced(blocks).lower().as_text()
    return text
