"""cachec for native code: ``mlir-opt``, ``mlir-translate`` and ``clang`` make libraries whose weights stay outside.

Importing this package imports none of what links: no ctypes, no numpy.
"""

from __future__ import annotations

from cachec_native.pipeline import KIND, LLVM_IR, PASSES, to_library, to_llvm_dialect, to_llvm_ir
from cachec_native.plugin import NativePlugin

__all__ = ["KIND", "LLVM_IR", "PASSES", "NativePlugin", "plugin", "to_library", "to_llvm_dialect", "to_llvm_ir"]

#: The object behind the entry point ``native`` of the group ``cachec.plugins``.
plugin = NativePlugin()
