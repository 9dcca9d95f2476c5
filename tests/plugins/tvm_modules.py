"""Modules of torch and of Relax for TVM, and what the tests of cachec_tvm make with them. Imports torch and tvm."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from tvm import relax, tirx

import cachec
import cachec_torch
from cachec_torch.tensors import as_array
from tests.plugins import executorch_modules
from tests.plugins.torch_modules import as_tensors

TIES = executorch_modules.TIES


class Mixed(executorch_modules.Lowered):
    """Weights of every size, ties, persistent and other buffers, a constant, trees in and out, a dynamic size; an input
    and a weight that come out as they are."""

    def forward(self, x, *, more, flag=2):
        y = self.norm(torch.relu(self.tied(self.up(x))) * self.eight + self.plain)
        y = (y @ self.down * torch.exp(self.scalar / 4) + self.nine) * self.one * self.scale + more["bias"]
        rows = [more["rows"] * flag]
        return {"y": y, "parts": (y.sum(0), None, 3), "rows": rows, "given": (x, self.one), "calls": self.calls * 2}


def program(given: cachec.WeightSet, scale: float = 1.0) -> cachec.Program:
    args, kwargs = as_tensors(executorch_modules.inputs())
    sizes = executorch_modules.sizes()
    return cachec_torch.to_exported(lambda: Mixed(scale), given, args, kwargs, dynamic_shapes=sizes)


class Types(nn.Module):
    """Weights and results that are not float32."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Parameter(torch.ones(4, dtype=torch.float16))
        self.brain = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        self.table = nn.Buffer(torch.arange(6))
        self.mask = nn.Buffer(torch.tensor([True, False, True, True]))

    def forward(self, x, index):
        brain = self.brain + self.brain
        return x.double() * self.narrow, brain, self.table[index], self.mask & (x > 0)


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c, self.n, self.a = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        y = self.n(self.c(x)).flatten(2).transpose(1, 2)
        return self.a(y, y, y, need_weights=False)[0]


def weights_of(module: nn.Module) -> cachec.WeightSet:
    """Of every type, where numpy alone has no bfloat16."""
    return cachec.WeightSet.from_arrays({name: as_array(tensor) for name, tensor in module.state_dict().items()})


def exported(make: Any, *args: Any, **options: Any) -> cachec.Program:
    return cachec_torch.to_exported(make, weights_of(make()), args, **options)


#: Of ``chain``.
SHAPES = {"up.weight": (8, 16), "down": (16, 8)}


def chain(
    *,
    local: str = "a",
    names: tuple[str, str, str] = ("x", "up.weight", "down"),
    operation: Any = relax.op.nn.relu,
    rows: Any = 2,
    scale: float | None = None,
    attributes: dict[str, Any] | None = None,
    constant: Any = None,
    weights_first: bool = False,
    function: str = "main",
) -> Any:
    """A module of Relax: ``operation(x @ up) @ down``, and what is asked for beside."""
    builder = relax.BlockBuilder()
    sizes = (tirx.Var(rows, "int64") if isinstance(rows, str) else rows, 8)
    shapes = (sizes, *SHAPES.values())
    x, up, down = (relax.Var(name, relax.TensorType(each, "float32")) for name, each in zip(names, shapes, strict=True))
    with builder.function(function, [down, x, up] if weights_first else [x, up, down], attrs=attributes or {}):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, up), name_hint=local)
            y = builder.emit(relax.op.matmul(operation(y), down))
            if scale is not None:
                y = builder.emit(relax.op.multiply(y, relax.const(scale, "float32")))
            if constant is not None:
                y = builder.emit(relax.op.add(y, relax.const(np.asarray(constant, "f4"))))
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    return builder.get()


def chain_weights(seed: int) -> cachec.WeightSet:
    draw = np.random.default_rng(seed)
    return cachec.WeightSet.from_arrays({n: draw.normal(size=shape).astype("f4") for n, shape in SHAPES.items()})
