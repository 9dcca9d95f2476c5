"""``jit``: ``jax.jit`` for functions that close over their weights. A call of it imports JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cachec.errors import UnsupportedVersion
from cachec.programs.supported_versions import GONE, step_aside
from cachec_jax.persistent_cache import store_folder, why_unusable


def jit(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """``jax.jit(function, **options)``, whose program takes the arrays that ``function`` closes over as arguments.

    So a function with other weights (another seed, a fine-tune) is traced and lowered, but not compiled: its program is
    in the store of ``install``. The first compile calls ``install`` if needed. No program has the arrays' bytes. As
    with ``jax.jit``, the program uses the arrays as they were when ``function`` was traced; a later change has no
    effect.

    All else works as with ``jax.jit``, inside of other transformations, too. Without a function this returns a
    decorator. If this package can't work with the installed JAX, it warns and returns the result of ``jax.jit``.
    """
    if function is None:
        return partial(jit, **options)
    import jax

    jitted = jax.jit(function, **options)
    reason = why_unusable(store_folder)
    if not reason:
        try:
            from cachec_jax.hoisting import hoist_constants

            return hoist_constants(function, jitted._jit_info)
        except (*GONE, UnsupportedVersion) as error:
            reason = f"JAX has changed what jax.jit is made of: {type(error).__name__}: {error}"
    step_aside(f"cachec_jax.jit: {reason}; the function is what jax.jit gives", strict=False)
    return jitted
