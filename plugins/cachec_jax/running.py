"""The runs of stages that trace with JAX: no trace that JAX made before, of what may have been other code, is used.

JAX keeps traces and what was compiled by function, types and *context*. A changed global or a changed helper is no part
of that, so a jitted helper that was traced before would be lowered as it was: the old program under the new key. Each
run is therefore given a context of its own. What others have traced stays theirs, and is found again afterwards.

The context is one that JAX made by ``make_user_context`` for itself. A new one would do as well, but for one thing:
adding one changes every context, so that all that the process had jitted before were traced and compiled again. JAX
takes its value for the dispatch cache of the functions that are jitted there, so it gets one of these. JAX 0.7.2 to
0.10.1 has no such context, so one is made, once for the process. Before 0.7.2 none can be made: JAX forgets all traces
before each run.

A context is a thread's own: in threads that a stage starts, what was traced outside of stages is used again.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

#: As large as JAX's own.
_ENTRIES = 8192


def running() -> AbstractContextManager[Any]:
    """What a run is to be put in. Imports nothing: where JAX is not imported yet, it has traced nothing yet."""
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
    """One for the process: each more would make all that is jitted be traced again."""
    return sys.modules["jax"].make_user_context()
