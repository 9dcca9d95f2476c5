"""torch's steps as cached stages: module -> exported program -> library."""

from __future__ import annotations

import sys
from pathlib import Path

import cachec

sys.path.append(str(Path(__file__).parents[1] / "minilm"))

cache = cachec.Cache()

#: Of the checkpoint, what the model has no use for.
UNUSED = ["*.position_ids", "pooler.*"]


def open_weights(path: str) -> cachec.WeightSet:
    """The weights that the model uses, by the checkpoint's own names."""
    return cachec.open_weights(path).select(exclude=UNUSED)


@cache.stage(tools=["torch"])
def export(weights: cachec.WeightSet, batch: int, seq: int) -> cachec.Program:
    """Trace the model without allocating a weight."""
    import torch
    from model import MiniLM

    import cachec_torch  # imported, as torch is, on a miss only

    tokens = torch.ones(batch, seq, dtype=torch.int64)
    return cachec_torch.to_exported(MiniLM, weights.placeholders(), (tokens, tokens))


@cache.stage(tools=["torch"])
def build(program: cachec.Program) -> cachec.File:
    """Run AOTInductor, and with it the C++ compiler."""
    import cachec_torch

    return cachec_torch.compile_aoti(program)
