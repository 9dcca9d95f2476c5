"""MiniLM's forward pass in numpy, from the published architecture and in float64: what the tests compare with.

Sources: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2018), section 3; Vaswani et al.,
"Attention Is All You Need" (2017), sections 3.2 and 3.3; Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016);
the checkpoint's ``config.json`` and ``1_Pooling/config.json``. It shares no line with ``examples/minilm/model.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

HEADS = 12
EPSILON = 1e-12

_erf = np.vectorize(math.erf)


def embed(weights: Mapping[str, np.ndarray], ids: np.ndarray, mask: np.ndarray, layers: int = 6) -> np.ndarray:
    """Sentence embeddings, float64 [batch, 384]; one sentence at a time, its padding cut off instead of masked."""
    return np.stack([_sentence(weights, row[: int(seen.sum())], layers) for row, seen in zip(ids, mask, strict=True)])


def _sentence(weights: Mapping[str, np.ndarray], tokens: np.ndarray, layers: int) -> np.ndarray:
    w = {name: np.asarray(value, np.float64) for name, value in weights.items() if "word_embeddings" not in name}
    x = np.asarray(weights["embeddings.word_embeddings.weight"], np.float64)[tokens]
    x = x + w["embeddings.position_embeddings.weight"][np.arange(len(tokens))]
    x = x + w["embeddings.token_type_embeddings.weight"][0]
    x = _normalise(x, w, "embeddings.LayerNorm")
    for i in range(layers):
        p = f"encoder.layer.{i}"
        q, k, v = (_dense(x, w, f"{p}.attention.self.{part}") for part in ("query", "key", "value"))
        heads = []
        for q_h, k_h, v_h in zip(*(np.split(each, HEADS, axis=1) for each in (q, k, v)), strict=True):
            scores = np.einsum("id,jd->ij", q_h, k_h) / math.sqrt(q_h.shape[1])
            odds = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads.append((odds / odds.sum(axis=1, keepdims=True)) @ v_h)
        mixed = _dense(np.concatenate(heads, axis=1), w, f"{p}.attention.output.dense")
        x = _normalise(x + mixed, w, f"{p}.attention.output.LayerNorm")
        inner = _dense(x, w, f"{p}.intermediate.dense")
        inner = 0.5 * inner * (1.0 + _erf(inner / math.sqrt(2.0)))
        x = _normalise(x + _dense(inner, w, f"{p}.output.dense"), w, f"{p}.output.LayerNorm")
    mean = x.mean(axis=0)
    return mean / np.linalg.norm(mean)


def _dense(x: np.ndarray, w: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return np.einsum("ti,oi->to", x, w[f"{name}.weight"]) + w[f"{name}.bias"]


def _normalise(x: np.ndarray, w: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + EPSILON) * w[
        f"{name}.weight"
    ] + w[f"{name}.bias"]
