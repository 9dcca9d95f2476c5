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

    signature: parameter -> type (``*fp32``, ``i32``), or ``constexpr`` for those with values in ``constexprs``. target:
    ``cuda:`` and the compute capability without a dot. options: Triton's, such as ``num_warps``. The ``.json`` has
    Triton's metadata of the kernel: its name, shared memory, warps.

    This needs no GPU, and does not use Triton's own cache. The files have no positions in sources. The running stage
    records a ``ptxas`` that is not Triton's own.

    The folder is a temporary one, which is removed with the returned object. Raises UsageError for a function that is
    not a kernel, and for an unknown target. Triton's errors for a kernel that it can't compile pass through.
    """
    from cachec_triton.compiler import compile_kernel

    return compile_kernel(kernel, signature, constexprs, target, options)


def install(cache: Cache | None = None, *, strict: bool = False) -> Cache:
    """Store Triton's compiled kernels in ``cache``, by default ``cachec.Cache()``, and return the cache.

    This imports triton, and sets Triton's own setting (``TRITON_CACHE_MANAGER``) in this process. A second call changes
    to another cache. A process that only has that variable, set to
    ``cachec_triton.cache_manager:StoredKernels``, does the same with the default cache.

    Without a folder for a store, Triton uses its own cache (``bypass:no-store-folder``).

    If triton is missing, too old, or fails the self-test, this warns, and Triton uses its own cache. strict: raise
    UnsupportedVersion instead.
    """
    from cachec_triton.installation import install as put

    return put(cache, strict=strict)


def uninstall() -> None:
    """Undo ``install``: Triton gets its own cache back. Without ``install`` this does nothing."""
    from cachec_triton.installation import uninstall as remove

    remove()
