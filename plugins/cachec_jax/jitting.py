"""``jax.jit`` for functions that close over their weights. Does not import JAX before it is called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cachec.errors import UnsupportedVersion
from cachec.programs.supported_versions import GONE, step_aside
from cachec_jax.persistent import store_folder, why_unusable


def jit(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """``jax.jit(function, **options)``, whose program takes the arrays that ``function`` closes over as arguments.

    So a function with other weights (another seed, a fine-tune) is traced and lowered, but not compiled: its program is
    found in the store of ``install``, which is called at the first compile where nobody has. The arrays' bytes are in
    no program. As of ``jax.jit``, they are those that ``function`` had when it was traced; what becomes of an array
    afterwards changes nothing.

    Everything else, inside of other transformations too, is JAX's. Without a function, gives a decorator.
    Where this package can't work with the installed JAX, it warns and gives what ``jax.jit`` gives.
    """
    if function is None:
        return partial(jit, **options)
    import jax

    jitted = jax.jit(function, **options)
    reason = why_unusable(store_folder)
    if not reason:
        try:
            from cachec_jax.hoisting import hoisting

            return hoisting(function, jitted._jit_info)
        except (*GONE, UnsupportedVersion) as error:
            reason = f"JAX has changed what jax.jit is made of: {type(error).__name__}: {error}"
    step_aside(f"cachec_jax.jit: {reason}; the function is what jax.jit gives", strict=False)
    return jitted
