"""cachec for MLIR without MLIR: strip, link and hash modules, as text or bytecode; no byte of a weight is parsed.

``str`` and ``PathLike`` are paths everywhere, bytes are modules in memory. The first use of a name imports its module,
because every process with plugins imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachec.base.lazy import lazily
from cachec_mlir.plugin import MlirPlugin

if TYPE_CHECKING:
    from cachec_mlir.blobs import ALIGNMENT, Blob, Resource, Resources
    from cachec_mlir.bytecode.reader import Bytecode, is_bytecode
    from cachec_mlir.file_writer import LinkResult, StripResult
    from cachec_mlir.linking.relinker import RelinkResult, relink, relink_by_reference
    from cachec_mlir.linking.renames import MarkedModule, Renames, find_renames, mark
    from cachec_mlir.linking.weight_references import ReferResult, refer
    from cachec_mlir.live.live_modules import load
    from cachec_mlir.programs import MlirProgram, program
    from cachec_mlir.strip_and_link import link, strip
    from cachec_mlir.text.stripper import MINIMUM
    from cachec_mlir.topology_hash import Topologies, canonical, topology

_HOMES = {
    "cachec_mlir.blobs": ("ALIGNMENT", "Blob", "Resource", "Resources"),
    "cachec_mlir.bytecode.reader": ("Bytecode", "is_bytecode"),
    "cachec_mlir.strip_and_link": ("link", "strip"),
    "cachec_mlir.topology_hash": ("Topologies", "canonical", "topology"),
    "cachec_mlir.live.live_modules": ("load",),
    "cachec_mlir.programs": ("MlirProgram", "program"),
    "cachec_mlir.linking.weight_references": ("ReferResult", "refer"),
    "cachec_mlir.linking.relinker": ("RelinkResult", "relink", "relink_by_reference"),
    "cachec_mlir.linking.renames": ("MarkedModule", "Renames", "mark", "find_renames"),
    "cachec_mlir.file_writer": ("LinkResult", "StripResult"),
    "cachec_mlir.text.stripper": ("MINIMUM",),
}

__all__ = [
    "ALIGNMENT",
    "MINIMUM",
    "Blob",
    "Bytecode",
    "LinkResult",
    "MarkedModule",
    "MlirPlugin",
    "MlirProgram",
    "ReferResult",
    "RelinkResult",
    "Renames",
    "Resource",
    "Resources",
    "StripResult",
    "Topologies",
    "canonical",
    "find_renames",
    "is_bytecode",
    "link",
    "load",
    "mark",
    "plugin",
    "program",
    "refer",
    "relink",
    "relink_by_reference",
    "strip",
    "topology",
]

#: The object behind the entry point ``mlir`` of the group ``cachec.plugins``.
plugin = MlirPlugin()

__getattr__, __dir__ = lazily(globals(), _HOMES)
