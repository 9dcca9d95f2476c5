"""Small modules of torch, and what the tests of cachec_torch make with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

import cachec
import cachec_torch


class Base(nn.Module):
    def __init__(self, scale: float = 1.5, act: Any = torch.relu, width: int = 8) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, width), nn.Linear(width, 8)
        self.scale, self.act = scale, act

    def forward(self, x):
        return self.b(self.act(self.a(x))) * self.scale


class Renamed(nn.Module):
    """The same as ``Base``, by another class with other names and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Linear(8, 8)
        self.a = nn.Linear(8, 8)

    def forward(self, x):
        # a comment
        hidden = self.a(x)
        hidden = torch.relu(hidden)
        out = self.b(hidden)
        return out * 1.5


class InputRenamed(Base):
    def forward(self, other):
        return super().forward(other)


class Constant(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.a, self.value = nn.Linear(8, 8), torch.tensor([value])

    def forward(self, x):
        return self.a(x) * self.value


class Buffer(nn.Module):
    def __init__(self, base: float, *, persistent: bool = False, device: str = "cpu") -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.register_buffer("frequency", 1 / base ** torch.arange(8.0, device=device), persistent=persistent)

    def forward(self, x):
        return self.a(x) * self.frequency


class Tied(nn.Module):
    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        if tie:
            self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Cond(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.a, self.scale = nn.Linear(8, 8), scale

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: self.a(y), lambda y: y * self.scale, (x,))


class Scan(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.a, self.scale = nn.Linear(8, 8), scale

    def forward(self, x):
        from torch._higher_order_ops.scan import scan

        return scan(lambda carry, y: (carry * self.scale + y, carry * 1.0), torch.zeros(8), self.a(x))[1]


class While(nn.Module):
    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.a, self.rounds = nn.Linear(8, 8), rounds

    def forward(self, x):
        from torch._higher_order_ops.while_loop import while_loop

        start = (torch.tensor(0), self.a(x))
        return while_loop(lambda i, y: i < self.rounds, lambda i, y: (i + 1, y * 2), start)[1]


class Output(nn.Module):
    def __init__(self, key: str) -> None:
        super().__init__()
        self.a, self.key = nn.Linear(8, 8), key

    def forward(self, x):
        return {self.key: self.a(x)}


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.n = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x):
        return self.n(self.a(x))


def weights_of(module: nn.Module, tied: Iterable[Iterable[str]] = ()) -> cachec.WeightSet:
    return cachec.WeightSet.from_arrays({n: t.detach().numpy() for n, t in module.state_dict().items()}, tied=tied)


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module whose every weight is another with each seed."""
    module, random = make(), np.random.default_rng(seed)
    with torch.no_grad():
        for tensor in module.state_dict(keep_vars=True).values():
            if tensor.is_floating_point():
                tensor.copy_(torch.from_numpy(random.normal(1, 0.5, tuple(tensor.shape))))
    return module.eval()


class Small(nn.Module):
    """Weights of every size that AOTInductor treats differently, ties, buffers of each kind that the program writes to,
    constants, trees in and out, a dynamic size; what comes out twice, and what goes in and comes out."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.l, self.n, self.u = nn.Linear(8, 8), nn.LayerNorm(16), nn.Linear(8, 16)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.l.weight
        self.scalar = nn.Parameter(torch.tensor(1.5))
        self.one, self.nine = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(9))
        self.w = nn.Parameter(torch.ones(16, 9))
        self.register_buffer("kept", torch.ones(8))
        self.register_buffer("gain", torch.tensor(2.0))
        self.register_buffer("seen", torch.zeros(9))
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.register_buffer("fixed", torch.arange(9.0) / 2, persistent=False)
        self.plain = torch.arange(18.0).reshape(9, 2).t()[1]
        self.scale = scale

    def forward(self, x, *, more, flag=2):
        y = self.n(self.u(torch.relu(self.tied(self.l(x)) * self.kept))) @ self.w * torch.exp(self.scalar / 4)
        y = (y + self.nine) * (self.one + 1) / (1 + self.gain * self.gain) + self.fixed + self.plain + more["bias"]
        y = y * self.scale
        self.seen.add_(y.sum(0))
        self.calls.add_(1)
        counted = (self.seen + 0, self.calls * 2)
        same = (y, self.w, self.w, x, self.fixed)
        return {"y": y, "parts": (y.sum(0), None, 3), "rows": [more["rows"] + flag], "counted": counted, "same": same}


SMALL_TIES = [("l.weight", "tied.weight")]


def small_weights(seed: int) -> cachec.WeightSet:
    return weights_of(seeded(Small, seed), SMALL_TIES)


def small_program(weights: cachec.WeightSet, scale: float = 1.0) -> cachec.Program:
    args, kwargs = as_tensors(small_inputs())
    sizes = {"x": {0: torch.export.Dim("n", min=2, max=16)}, "more": {"rows": {}, "bias": {}}, "flag": None}
    return cachec_torch.to_exported(lambda: Small(scale), weights, args, kwargs, dynamic_shapes=sizes)


def small_inputs(rows: int = 3, seed: int = 0):
    random = np.random.default_rng(seed)
    x, bias = random.normal(size=(rows, 8)).astype("f4"), random.normal(size=9).astype("f4")
    return (x,), {"more": {"rows": np.arange(6).reshape(2, 3), "bias": bias}, "flag": 2}


def as_tensors(tree: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda each: torch.from_numpy(each) if isinstance(each, np.ndarray) else each, tree
    )
