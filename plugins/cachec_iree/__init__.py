"""cachec for IREE: ``compile`` runs iree-compile on a program, ``cachec.link`` links the module to mapped weights.

Importing this package imports neither the compiler nor the runtime.
"""

from __future__ import annotations

from cachec_iree.compiler import compile, compile_phase, find_iree_compile
from cachec_iree.phases import PHASES
from cachec_iree.plugin import IreePlugin

__all__ = ["PHASES", "IreePlugin", "compile", "compile_phase", "find_iree_compile", "plugin"]

#: The object behind the entry point ``iree`` of the group ``cachec.plugins``.
plugin = IreePlugin()
