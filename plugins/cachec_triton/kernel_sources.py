"""Fingerprints of kernels: the source of a kernel and of all that it uses, as they are now. Imports triton.

Triton's own key of a kernel (``JITFunction.cache_key``) is made only once, so it misses a helper or a global that is
replaced later. It also has the line number of the kernel.
"""

from __future__ import annotations

import inspect
from typing import Any

from triton.runtime.jit import DependenciesFinder

from cachec.base.hashing import Hasher
from cachec.programs.plugin import Fingerprint


def fingerprint(kernel: Any) -> Fingerprint:
    """See ``TritonPlugin``."""
    hasher = Hasher("triton")
    hasher.part("source", _source_key(kernel, set()).encode("utf-8", "surrogatepass"))
    return Fingerprint(hasher.digest(), f"kernel {kernel.__module__}.{kernel.__qualname__}")


def _source_key(function: Any, visited: set[int]) -> str:
    """Return the text that stands for a function in a key. visited: the ids of the functions that led here."""
    if id(function) in visited:
        return f"again {function.__qualname__}"
    nonlocals = dict(inspect.getclosurevars(function.fn).nonlocals)
    finder = _FreshDependencies(function, nonlocals, visited | {id(function)})
    finder.visit(function.parse())
    used = sorted((name, repr(value)) for (name, _), (value, _) in finder.used_global_vals.items())
    options = [(name, repr(getattr(function, name, None))) for name in ("noinline", "do_not_specialize", "debug")]
    return repr((type(function).__qualname__, finder.ret, used, options))


class _FreshDependencies(DependenciesFinder):  # type: ignore[misc]  # it has no types
    """Triton's finder of dependencies, with new keys for the functions that a kernel calls."""

    def __init__(self, function: Any, nonlocals: dict[str, Any], visited: set[int]) -> None:
        super().__init__(function._fn_name, function.__globals__, nonlocals, function.src)
        self._visited = visited

    def _update_hash(self, func: Any) -> None:
        self.hasher.update(_source_key(func, self._visited).encode("utf-8", "surrogatepass"))
