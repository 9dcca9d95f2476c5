"""Isolation of a stage's traces: a run of a stage uses no trace that JAX made before, as the code may have changed.

JAX caches traces and compiled programs by function, types and *context*. A changed global or a changed helper is not in
that key. So JAX would lower a jitted helper as it was traced before: the old program under the new key. Each run
therefore gets a context of its own. The traces of other contexts stay, and JAX uses them again afterwards.

The context is one that JAX itself made by ``make_user_context``. A new context would change every context of the
process, and JAX would trace and compile all functions again. JAX uses the context's value as the dispatch cache of the
functions that are jitted in it, so the run sets a new dispatch cache. JAX 0.7.2 to 0.10.1 has no such context, so this
module makes one, once for the process. Before 0.7.2 none can be made, so JAX drops all traces before each run.

A context belongs to a thread: threads that a stage starts use the traces from outside of stages.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

#: The size of a dispatch cache: the same as of JAX's own.
_ENTRIES = 8192


def isolate_traces() -> AbstractContextManager[Any]:
    """Return the context for a run of a stage. Imports nothing: if JAX is not imported yet, there is no trace yet."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "jit"):  # the latter: while another thread imports it
        return nullcontext()
    modules = sys.modules
    context = getattr(modules.get("jax._src.config"), "jax_jit_cpp_cache_obj", None)
    make = getattr(modules.get("jax._src.pjit"), "make_jit_cpp_cache", None)
    if context is not None and make is not None:
        own: AbstractContextManager[Any] = context(make(_ENTRIES))
        return own
    if hasattr(jax, "make_user_context"):
        again: AbstractContextManager[Any] = _own_context()(object())
        return again
    jax.clear_caches()
    return nullcontext()


@lru_cache(maxsize=1)
def _own_context() -> Any:
    """Return the one context of the process: a further one would make JAX trace all jitted functions again."""
    return sys.modules["jax"].make_user_context()
