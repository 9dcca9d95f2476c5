"""``jax.jit`` for functions that close over their weights. Does not import JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cachec_jax.persistent import checked_seam


def jit(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """``jax.jit(function, **options)``, whose program takes the arrays that ``function`` closes over as arguments.

    So a function with other weights (another seed, a fine-tune) is traced and lowered, but not compiled: its program is
    found in the store of ``install``, which is called at the first compile where nobody has. The arrays' bytes are in
    no program. As of ``jax.jit``, they are those that ``function`` had when it was traced; what becomes of an array
    afterwards changes nothing.

    Everything else, inside of other transformations too, is JAX's. Without a function, gives a decorator.
    Raises UnsupportedVersion where JAX is of another release than this package knows.
    """
    if function is None:
        return partial(jit, **options)
    checked_seam()
    from cachec_jax.hoisting import hoisting

    return hoisting(function, options)
