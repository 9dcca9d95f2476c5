"""The plugin object for Triton, which it imports only for a kernel."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cachec.errors import PluginError
from cachec.programs.artifact import Dir
from cachec.programs.plugin import Fingerprint, Plugin

#: Prefixes of the variables that Triton, its passes and ptxas read.
_PREFIXES = ("AMDGCN_", "MLIR_", "NVPTX_", "PTXAS_", "TRITON_")

#: Other variables that they read.
_VARIABLES = frozenset(
    {
        "ALLOW_LHS_TMEM_LAYOUT_CONVERSION",
        "DISABLE_LLVM_OPT",
        "DISABLE_MMA_V3",
        "DISABLE_MMA_V5",
        "DISABLE_PTXAS_OPT",
        "LLVM_EXTRACT_DI_LOCAL_VARIABLES",
        "LLVM_IR_ENABLE_DUMP",
        "LLVM_PASS_PLUGIN_PATH",
        "USE_IR_LOC",
    }
)

#: Variables about the place of results, and about printing.
_IRRELEVANT = (
    *("TRITON_ALWAYS_COMPILE", "TRITON_CACHE_", "TRITON_DUMP_DIR", "TRITON_HOME", "TRITON_PRINT_AUTOTUNING"),
    *("TRITON_PROTON_", "TRITON_REDIS_", "TRITON_REMOTE_CACHE_BACKEND", "TRITON_STORE_BINARY_ONLY"),
)


class TritonPlugin(Plugin):
    """Kernels as arguments of stages, by their source and all that it uses."""

    name = "triton"
    distributions = ("triton",)
    programs = ("triton",)
    tried_releases = MappingProxyType({"triton": ">=3.7,<3.10"})
    self_test = "cachec_triton.self_test:self_test"
    types = ("triton.runtime.jit.JITCallable",)

    def ambient(self) -> Mapping[str, str]:
        """Return the variables that Triton reads, and its hook on the stages of a compilation.

        Triton also writes its settings in a process to these variables.
        """
        found = {
            name: value
            for name, value in sorted(os.environ.items())
            if (name.startswith(_PREFIXES) or name in _VARIABLES) and not name.startswith(_IRRELEVANT)
        }
        knobs = sys.modules.get("triton.knobs")
        hook = getattr(getattr(knobs, "runtime", None), "add_stages_inspection_hook", None)
        if hook is not None:
            found["add_stages_inspection_hook"] = str(hook()[1])
        return found

    def fingerprint(self, value: Any) -> Fingerprint:
        """Hash the current source of a kernel and of the functions that it calls, and the globals that they use."""
        from cachec_triton.kernel_sources import fingerprint

        return fingerprint(value)

    def compare(self, fresh: Any, stored: Any) -> str | None:
        """Return None if two folders have equal files, else the first difference."""
        if not isinstance(fresh, Dir) or not isinstance(stored, Dir):
            raise PluginError(f"plugin {self.name!r} compares folders that cachec_triton.compile makes")
        a, b = ({each.name: each.read_bytes() for each in one.path.iterdir()} for one in (fresh, stored))
        return next((f"{name} differs" for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)), None)
