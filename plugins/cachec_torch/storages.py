"""Storages of tensors on their way to another process. Imports torch, and no more of it: that may set variables."""

from __future__ import annotations

from typing import Any

import torch


def reduced(storage: Any) -> Any:
    """See TorchPlugin.reduce: what a tensor has its data in."""
    untyped = storage._untyped_storage
    if untyped.device.type != "cpu" or not untyped.nbytes():
        return NotImplemented
    data = torch.tensor([], dtype=torch.uint8).set_(untyped).numpy()
    return received, (data, storage.dtype)


def received(data: Any, dtype: torch.dtype) -> Any:
    """The storage with these bytes."""
    untyped = torch.from_numpy(data).untyped_storage()
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)
