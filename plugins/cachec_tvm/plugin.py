"""The plugin object for TVM, which it imports only to link a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cachec.errors import PluginError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_mlir.plugin import FilePlugin
from cachec_tvm.kinds import EXPORTED, KIND, RELAX

#: The prefix of TVM's variables, and those that change only how code runs and what is printed.
_VARIABLES = "TVM_"
_IRRELEVANT = frozenset({"TVM_BACKTRACE", "TVM_BIND_THREADS", "TVM_NUM_THREADS", "TVM_THREAD_POOL_SPIN_COUNT"})

#: Variables with the compiler that links.
_LINKERS = ("CXX", "CC")

#: The defaults of the context in which passes run.
_DEFAULTS = {"opt_level": "2", "config": "{}", "required_pass": "[]", "disabled_pass": "[]", "instruments": "[]"}


class TvmPlugin(FilePlugin):
    """Libraries that TVM compiled of programs with weights by name."""

    name = "tvm"
    distributions = ("apache-tvm", "apache-tvm-ffi")
    programs = ("tvm.support.cc", "tvm.support.clang", "tvm.support.nvcc", "tvm.support.rocm", "tvm.support.tar")
    tried_releases = MappingProxyType({"apache-tvm": ">=0.26,<0.28"})
    self_test = "cachec_tvm.self_test:self_test"

    def ambient(self) -> Mapping[str, str]:
        """Return the current pass context and target, if not the defaults, and TVM's variables."""
        there = sorted(name for name in os.environ if name.startswith(_VARIABLES) and name not in _IRRELEVANT)
        values = {name: os.environ[name] for name in (*there, *_LINKERS) if os.environ.get(name)}
        tvm = sys.modules.get("tvm")
        if tvm is None or not hasattr(tvm, "compile"):  # not imported, or still being imported
            return values
        context, target = tvm.ir.transform.PassContext.current(), tvm.target.Target.current(allow_none=True)
        found = {
            "opt_level": str(context.opt_level),
            "config": str({str(name): str(value) for name, value in sorted(context.config.items())}),
            **{
                name: str([str(each) for each in getattr(context, name) or ()])
                for name in ("required_pass", "disabled_pass", "instruments")
            },
        }
        values |= {name: value for name, value in found.items() if value != _DEFAULTS[name]}
        return values if target is None else values | {"target": str(target)}

    def link(self, artifact: File | Program, weights: WeightSet) -> Any:
        """Return a ``LinkedMachine`` or ``LinkedExport`` of ``cachec_tvm.runtime``. Imports tvm."""
        if not isinstance(artifact, File) or artifact.kind not in {KIND, EXPORTED}:
            raise PluginError(
                f"{artifact!r} is of neither kind {KIND!r} nor {EXPORTED!r}; cachec_tvm.compile makes such files"
            )
        from cachec_tvm.runtime import link, link_export

        return link_export(artifact, weights) if artifact.kind == EXPORTED else link(artifact, weights)

    def suffix(self, format: str) -> str:
        """``.py``: TVMScript is Python."""
        return ".py" if format == RELAX else super().suffix(format)
