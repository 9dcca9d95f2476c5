"""Copies of arrays that nobody else has. Does not import JAX."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Bytes. What begins at such an address, XLA's CPU client uses where it is (``kMinimumAlignment``).
_ALIGNMENT = 64


def own_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that JAX takes without another. ``jax.device_put(array, may_alias=False)`` makes none of NumPy's arrays
    that are aligned by chance."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy: np.ndarray[Any, Any] = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
