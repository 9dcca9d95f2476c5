"""Private copies of arrays, aligned so that XLA uses them in place. Does not import JAX."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Bytes. XLA's CPU client uses an array in place if it begins at such an address (``kMinimumAlignment``).
_ALIGNMENT = 64


def aligned_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy of ``array`` that JAX uses without a further copy.

    ``jax.device_put(array, may_alias=False)`` makes no copy of a NumPy array that is aligned by chance.
    """
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy: np.ndarray[Any, Any] = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
