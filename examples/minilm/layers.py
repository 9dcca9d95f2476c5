"""The parts of a BERT layer, and the shapes of its inputs: the helpers of ``model.py`` and ``stages.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax

    Weights = dict[str, jax.Array]

# config.json of the checkpoint: layer_norm_eps
EPSILON = 1e-12


def inputs(batch: int, seq: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of token numbers and mask."""
    import jax
    import jax.numpy as jnp

    tokens = jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    return tokens, tokens


def linear(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    """``x @ W.T + b``, as the checkpoint keeps W: [out, in]."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    """Zero mean and unit variance over the last axis, then scale and shift."""
    import jax.numpy as jnp

    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return centred / jnp.sqrt(variance + EPSILON) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def attention(weights: Weights, name: str, x: jax.Array, mask: jax.Array, heads: int) -> jax.Array:
    """Multi-head self-attention over the tokens that ``mask`` shows. x: [batch, seq, hidden]."""
    import jax
    import jax.numpy as jnp

    batch, seq, hidden = x.shape
    size = hidden // heads

    def split(part: str) -> jax.Array:
        return linear(weights, f"{name}.self.{part}", x).reshape(batch, seq, heads, size).transpose(0, 2, 1, 3)

    scores = split("query") @ split("key").transpose(0, 1, 3, 2) / jnp.sqrt(jnp.float32(size))
    scores = jnp.where(mask[:, None, None, :] > 0, scores, jnp.finfo(x.dtype).min)
    mixed = jax.nn.softmax(scores, axis=-1) @ split("value")
    return linear(weights, f"{name}.output.dense", mixed.transpose(0, 2, 1, 3).reshape(batch, seq, hidden))


def feed_forward(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    """Two linear maps with the exact GELU (by the error function) between them."""
    import jax

    inner = jax.nn.gelu(linear(weights, f"{name}.intermediate.dense", x), approximate=False)
    return linear(weights, f"{name}.output.dense", inner)
