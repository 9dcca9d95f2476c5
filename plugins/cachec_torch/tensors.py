"""torch's tensors as memory, and back. Imports torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from cachec.errors import UsageError
from cachec_torch.shim import Block


def from_torch(value: Any, order: Sequence[int], number: int) -> Block:
    """A tensor on the CPU as it goes into a library: dense in the order of its axes. Raises UsageError for another."""
    kind = _oddity(value)
    if kind:
        raise UsageError(f"input {number} expected a dense tensor on the CPU, found {kind}")
    tensor = value.detach().resolve_conj().resolve_neg()
    if len(order) == tensor.dim():
        back = sorted(range(len(order)), key=order.__getitem__)
        tensor = tensor.permute(list(order)).contiguous().permute(back)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Block(tensor.data_ptr(), dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor)


def _oddity(value: Any) -> str:
    """What a value is, where it is no tensor whose numbers lie at its address."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    if value.device.type != "cpu" or value.layout != torch.strided:
        return f"{value.layout} on {value.device}"
    if value.is_nested:
        return "a nested one"
    # What computes with other tensors in its place (fake, masked) has no memory of its own.
    is_plain = type(value).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
    return "" if is_plain else f"a {type(value).__name__}"


def tensor_at(block: Block) -> torch.Tensor:
    """A tensor over the memory itself, which the tensor holds on to."""
    dtype = getattr(torch, block.dtype)
    if isinstance(block.keeps, torch.Tensor):
        return block.keeps
    if 0 in block.shape:
        return torch.empty_strided(block.shape, block.strides, dtype=dtype)
    nbytes = _span(block) * dtype.itemsize
    memory = (ctypes.c_char * nbytes).from_address(block.address)
    memory.keeps = block.keeps
    return torch.frombuffer(memory, dtype=dtype).as_strided(block.shape, block.strides)


def to_torch(block: Block) -> torch.Tensor:
    """A copy: the memory may be a weight's, or an input's."""
    if 0 in block.shape:
        return torch.empty_strided(block.shape, block.strides, dtype=getattr(torch, block.dtype))
    flat = torch.empty(_span(block), dtype=getattr(torch, block.dtype))
    ctypes.memmove(flat.data_ptr(), block.address, flat.nbytes)
    return flat.as_strided(block.shape, block.strides)


def as_array(tensor: torch.Tensor) -> Any:
    """A copy for numpy, of bfloat16 and float8 by ml_dtypes."""
    from cachec.weights.dtypes import numpy_dtype

    flat = tensor.detach().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    import numpy as np

    return np.frombuffer(bytearray(data), numpy_dtype(str(tensor.dtype).removeprefix("torch."))).reshape(tensor.shape)


def _span(block: Block) -> int:
    return 1 + sum((size - 1) * step for size, step in zip(block.shape, block.strides, strict=True))
