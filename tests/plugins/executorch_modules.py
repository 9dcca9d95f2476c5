"""A small module of torch for ExecuTorch, and what the tests of cachec_executorch make with it. Imports torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import cachec
import cachec_torch
from tests.plugins.torch_modules import as_tensors, seeded, weights_of

TIES = [("tied.weight", "up.weight")]


def sizes() -> dict[str, Any]:
    return {"x": {0: torch.export.Dim("n", min=2, max=16)}, "more": {"bias": {}, "rows": {}}, "flag": None}


class Lowered(nn.Module):
    """Weights of every size, ties, a constant, a buffer that is written to, trees in and out, a dynamic size."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.up, self.tied, self.norm = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.LayerNorm(8)
        self.tied.weight = self.up.weight
        self.scalar, self.one = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(1))
        self.eight, self.nine = nn.Buffer(torch.ones(8)), nn.Parameter(torch.ones(9))
        self.down = nn.Parameter(torch.ones(8, 9))
        self.plain = torch.arange(8.0) / 4
        self.register_buffer("calls", torch.tensor([3.0]), persistent=False)
        self.scale = scale

    def forward(self, x, *, more, flag=2):
        y = self.norm(torch.relu(self.tied(self.up(x))) * self.eight + self.plain)
        y = (y @ self.down * torch.exp(self.scalar / 4) + self.nine) * self.one * self.scale + more["bias"]
        self.calls.add_(1)
        return {"y": y, "parts": (y.sum(0), None, 3), "rows": [more["rows"] * flag], "calls": self.calls * 2}


def weights(seed: int) -> cachec.WeightSet:
    return weights_of(seeded(Lowered, seed), TIES)


def program(given: cachec.WeightSet, scale: float = 1.0) -> cachec.Program:
    args, kwargs = as_tensors(inputs())
    return cachec_torch.to_exported(lambda: Lowered(scale), given, args, kwargs, dynamic_shapes=sizes())


def inputs(rows: int = 3, seed: int = 0):
    random = np.random.default_rng(seed)
    more = {"rows": np.arange(6).reshape(2, 3), "bias": random.normal(size=9).astype("f4")}
    return (random.normal(size=(rows, 8)).astype("f4"),), {"more": more, "flag": 2}
