"""What of a torch tensor counts where it is an argument."""

from __future__ import annotations

from typing import Any

import numpy as np

from cachec.key.arguments import array_digest, tensor_digest
from tests.needs import Later

torch: Any = Later("torch")


def _with_gradient(tensor: Any) -> Any:
    tensor.sum().backward()
    return tensor


def test_what_of_a_tensor_counts() -> None:
    tensors = [
        torch.ones(2, 3),
        torch.zeros(2, 3),
        torch.ones(3, 2),
        torch.ones(2, 3).t().contiguous().t(),
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(2, 3, dtype=torch.int32),
        torch.ones(2, 3, requires_grad=True),
        torch.nn.Parameter(torch.ones(2, 3)),
        torch.nn.Parameter(torch.ones(2, 3), requires_grad=False),
        _with_gradient(torch.ones(2, 3, requires_grad=True)),
    ]
    assert len({tensor_digest(each, "x") for each in tensors}) == len(tensors)
    assert tensor_digest(torch.ones(2, 6)[:, :3].contiguous(), "x") == tensor_digest(tensors[0], "x")


def test_what_of_an_arrays_type_counts() -> None:
    types = [
        *("l", "q", "i4", np.dtype("i4", metadata={"a": 1}), np.dtype("i4", metadata={"a": 2})),
        *([("a", "l")], [("a", "q")], [("a", np.dtype("l", metadata={"b": 1}))]),
    ]
    assert len({array_digest(np.zeros(2, each)) for each in types}) == len(types)
