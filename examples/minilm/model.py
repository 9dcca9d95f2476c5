"""MiniLM-L6 (BERT encoder) as a plain JAX function. Weights go by the checkpoint's own names.

Architecture: Devlin et al., "BERT" (2018), post-layer-norm encoder; sizes from the checkpoint (hidden 384, 12 heads,
feed-forward 1536). Sentence embedding as sentence-transformers documents it for all-MiniLM-L6-v2: mean over the tokens
that are no padding, then unit length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layers import attention, feed_forward, layer_norm

if TYPE_CHECKING:
    import jax

HEADS = 12


def minilm(weights: dict[str, jax.Array], ids: jax.Array, mask: jax.Array) -> jax.Array:
    """Sentence embeddings.

    ids: int32 [batch, seq], token numbers. mask: int32 [batch, seq], 1 for a token and 0 for padding. Returns float32
    [batch, 384], rows of length 1. As many layers run as ``weights`` has.
    """
    x = embedded(weights, ids)
    for index in range(layer_count(weights)):
        x = block(weights, f"encoder.layer.{index}", x, mask)
    return pooled(x, mask)


def embedded(weights: dict[str, jax.Array], ids: jax.Array) -> jax.Array:
    """The input of the first layer, float32 [batch, seq, 384]."""
    # The third embedding is of the token's segment; a single sentence is all segment 0.
    x = (
        weights["embeddings.word_embeddings.weight"][ids]
        + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    return layer_norm(weights, "embeddings.LayerNorm", x)


def block(weights: dict[str, jax.Array], layer: str, x: jax.Array, mask: jax.Array) -> jax.Array:
    """One encoder layer, whose weights have names that begin with ``layer``."""
    mixed = attention(weights, f"{layer}.attention", x, mask, HEADS)
    x = layer_norm(weights, f"{layer}.attention.output.LayerNorm", x + mixed)
    return layer_norm(weights, f"{layer}.output.LayerNorm", x + feed_forward(weights, layer, x))


def pooled(x: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean over the tokens that are no padding, with length 1."""
    import jax.numpy as jnp

    seen = mask[:, :, None].astype(x.dtype)
    mean = (x * seen).sum(1) / jnp.maximum(seen.sum(1), 1e-9)
    return mean / jnp.maximum(jnp.sqrt((mean * mean).sum(1, keepdims=True)), 1e-12)


def layer_count(weights: dict[str, jax.Array]) -> int:
    """How many encoder layers these weights have."""
    return len({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")})
