"""Modules for ``cachec_torch.aot``, which a new process imports too."""

from __future__ import annotations

import sys

import torch
from torch import nn

FACTOR = 1.0


class Served(nn.Module):
    """Weights, a tie, both kinds of buffers, one that is written to, a plain tensor, a plain value, trees."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)
        self.b.weight = self.a.weight
        self.register_buffer("shift", torch.full((width,), 3.0), persistent=False)
        self.register_buffer("calls", torch.zeros(1))
        self.plain = torch.arange(float(width))
        self.scale = 2
        self.settings = {"more": [1.5]}

    def forward(self, x, flag=None, *, bias=None):
        print("traced", file=sys.stderr)
        self.calls.add_(1)
        y = torch.relu(self.b(self.a(x))) * self.scale * FACTOR + self.shift * self.settings["more"][0]
        return {"y": y if bias is None else y + bias, "plain": self.plain, "calls": self.calls * 1, "flag": flag}


def served(seed: int) -> Served:
    torch.manual_seed(seed)
    return Served().eval()


class Branches(nn.Module):
    """What torch can't export."""

    def forward(self, x):
        print("traced", file=sys.stderr)
        return x + 1 if x.sum() > 0 else x - 1
