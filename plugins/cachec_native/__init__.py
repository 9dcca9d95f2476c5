"""cachec for native code: ``mlir-opt``, ``mlir-translate`` and ``clang`` make libraries without their weights.

The first use of a name imports its module, because every process with plugins imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachec.base.lazy import lazily
from cachec_native.plugin import KIND, NativePlugin

if TYPE_CHECKING:
    from cachec_native.pipeline import LLVM_IR, PASSES, to_library, to_llvm_dialect, to_llvm_ir

_HOMES = {"cachec_native.pipeline": ("LLVM_IR", "PASSES", "to_library", "to_llvm_dialect", "to_llvm_ir")}

__all__ = ["KIND", "LLVM_IR", "PASSES", "NativePlugin", "plugin", "to_library", "to_llvm_dialect", "to_llvm_ir"]

#: The object behind the entry point ``native`` of the group ``cachec.plugins``.
plugin = NativePlugin()

__getattr__, __dir__ = lazily(globals(), _HOMES)
