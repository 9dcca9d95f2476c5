"""cachec for Triton: kernels compiled ahead of time without a GPU, and Triton's own cache in the store.

Importing this package does not import triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cachec.programs.artifact import Dir
from cachec_triton.plugin import TritonPlugin

if TYPE_CHECKING:
    from cachec.cache import Cache

__all__ = ["TritonPlugin", "compile", "install", "plugin", "uninstall"]

#: The object behind the entry point ``triton`` of the group ``cachec.plugins``.
plugin = TritonPlugin()


def compile(
    kernel: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any] = MappingProxyType({}),
    *,
    target: str = "cuda:90",
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Dir:
    """Compile a kernel (``@triton.jit``) to a folder of kind ``triton:kernel``: its ``.cubin``, ``.ptx`` and ``.json``.

    signature: parameter -> type (``*fp32``, ``i32``), ``constexpr`` for those in ``constexprs``, which have the values.
    target: ``cuda:`` and the compute capability without a dot. options: Triton's, such as ``num_warps``. The ``.json``
    is what Triton says of the kernel: its name, shared memory, warps.

    No GPU is needed, and Triton's own cache is neither read nor written. What is made holds no positions in sources. A
    ``ptxas`` that is not Triton's own is recorded in the running stage.

    The folder is a temporary one that goes when the returned object does. Raises UsageError for what is no kernel, and
    for another target; what Triton raises for a kernel that it can't compile passes through.
    """
    from cachec_triton.compiling import compiled

    return compiled(kernel, signature, constexprs, target, options)


def install(cache: Cache | None = None, *, strict: bool = False) -> Cache:
    """Let Triton keep what it compiles in ``cache``, by default ``cachec.Cache()``; returns that.

    By Triton's own setting (``TRITON_CACHE_MANAGER``), for this process. Imports triton. Called again, it changes to
    another cache that it is given. A process that only has that variable, set to
    ``cachec_triton.persistent:StoredKernels``, does the same with the default cache.

    Where there is no folder for a store, Triton goes on with its own cache (``bypass:no-store-folder``).

    Where triton is missing, too old, or fails the self-test, it warns, and Triton goes on with its own cache.
    strict: raise UnsupportedVersion instead.
    """
    from cachec_triton.installing import install as put

    return put(cache, strict=strict)


def uninstall() -> None:
    """Let Triton keep what it compiles where it did before ``install``. Harmless otherwise."""
    from cachec_triton.installing import uninstall as remove

    remove()
