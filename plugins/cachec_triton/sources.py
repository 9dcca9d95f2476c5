"""What a kernel is: its source and all that it reaches, looked at anew. Imports triton.

Triton has a key of a kernel too (``JITFunction.cache_key``), which it makes once: a helper or a global that is put in
the place of another afterwards is not in it. It also holds the line that the kernel begins in.
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
    hasher.part("source", _key(kernel, set()).encode("utf-8", "surrogatepass"))
    return Fingerprint(hasher.digest(), f"kernel {kernel.__module__}.{kernel.__qualname__}")


def _key(function: Any, above: set[int]) -> str:
    """above: the functions that are looked at already."""
    if id(function) in above:
        return f"again {function.__qualname__}"
    nonlocals = dict(inspect.getclosurevars(function.fn).nonlocals)
    finder = _FreshDependencies(function, nonlocals, above | {id(function)})
    finder.visit(function.parse())
    used = sorted((name, repr(value)) for (name, _), (value, _) in finder.used_global_vals.items())
    told = [(name, repr(getattr(function, name, None))) for name in ("noinline", "do_not_specialize", "debug")]
    return repr((type(function).__qualname__, finder.ret, used, told))


class _FreshDependencies(DependenciesFinder):  # type: ignore[misc]  # it has no types
    """Triton's own, but for the keys of functions that are reached, which it would take as they were made once."""

    def __init__(self, function: Any, nonlocals: dict[str, Any], above: set[int]) -> None:
        super().__init__(function._fn_name, function.__globals__, nonlocals, function.src)
        self._above = above

    def _update_hash(self, func: Any) -> None:
        self.hasher.update(_key(func, self._above).encode("utf-8", "surrogatepass"))
