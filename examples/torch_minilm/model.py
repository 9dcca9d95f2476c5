"""MiniLM-L6 (BERT encoder) as a torch module, whose parameters have the checkpoint's own names.

The same model as ``examples/minilm/model.py``: Devlin et al., "BERT" (2018), mean over the tokens that are no padding,
unit length. Tokens come in as int64 ``[batch, seq]``, with a mask of the same shape: 1 for a token, 0 for padding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN, HEADS, INNER, LAYERS = 384, 12, 1536, 6
WORDS, POSITIONS, SEGMENTS = 30522, 512, 2
EPSILON = 1e-12


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(WORDS, HIDDEN)
        self.position_embeddings = nn.Embedding(POSITIONS, HIDDEN)
        self.token_type_embeddings = nn.Embedding(SEGMENTS, HIDDEN)
        self.LayerNorm = nn.LayerNorm(HIDDEN, EPSILON)

    def forward(self, ids: Tensor) -> Tensor:
        """A single sentence is all segment 0."""
        positions = self.position_embeddings.weight[: ids.shape[1]]
        return self.LayerNorm(self.word_embeddings(ids) + positions + self.token_type_embeddings.weight[0])


class Projections(nn.Module):
    """Query, key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)]


class Added(nn.Module):
    """A linear map whose result is added to what went by, and normalised."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(inner, HIDDEN), nn.LayerNorm(HIDDEN, EPSILON)

    def forward(self, inner: Tensor, x: Tensor) -> Tensor:
        return self.LayerNorm(x + self.dense(inner))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self, self.output = Projections(), Added(HIDDEN)

    def forward(self, x: Tensor, shown: Tensor) -> Tensor:
        mixed = functional.scaled_dot_product_attention(*self.self(x), attn_mask=shown)
        return self.output(mixed.transpose(1, 2).flatten(2), x)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(HIDDEN, INNER)})
        self.output = Added(INNER)

    def forward(self, x: Tensor, shown: Tensor) -> Tensor:
        x = self.attention(x, shown)
        return self.output(functional.gelu(self.intermediate["dense"](x)), x)


class MiniLM(nn.Module):
    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer() for _ in range(layers))})

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Sentence embeddings, float32 ``[batch, 384]``."""
        x, shown = self.embeddings(ids), mask[:, None, None, :] > 0
        for layer in self.encoder["layer"]:
            x = layer(x, shown)
        seen = mask[:, :, None].to(x.dtype)
        return functional.normalize((x * seen).sum(1) / torch.clamp(seen.sum(1), min=1e-9), dim=1)
