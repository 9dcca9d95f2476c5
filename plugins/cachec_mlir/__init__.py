"""cachec for MLIR without MLIR: strip, link and hash modules, as text or bytecode; no byte of a weight is parsed.

``str`` and ``PathLike`` are paths everywhere, bytes are modules in memory. What is here is imported when it is first
used: every process that looks for plugins imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachec.base.lazy import lazily
from cachec_mlir.plugin import MlirPlugin

if TYPE_CHECKING:
    from cachec_mlir.blobs import ALIGNMENT, Blob, Resource, Resources
    from cachec_mlir.bytecode.reading import Bytecode, is_bytecode
    from cachec_mlir.forms import link, strip
    from cachec_mlir.hashes import Topologies, canonical, topology
    from cachec_mlir.linking.referring import Referred, refer
    from cachec_mlir.linking.relinking import Referenced, relink, relink_by_reference
    from cachec_mlir.linking.renames import Marked, Renames, mark, recorded
    from cachec_mlir.live.modules import load
    from cachec_mlir.programs import MlirProgram, program
    from cachec_mlir.text.stripping import MINIMUM
    from cachec_mlir.writing import Linked, Stripped

_HOMES = {
    "cachec_mlir.blobs": ("ALIGNMENT", "Blob", "Resource", "Resources"),
    "cachec_mlir.bytecode.reading": ("Bytecode", "is_bytecode"),
    "cachec_mlir.forms": ("link", "strip"),
    "cachec_mlir.hashes": ("Topologies", "canonical", "topology"),
    "cachec_mlir.live.modules": ("load",),
    "cachec_mlir.programs": ("MlirProgram", "program"),
    "cachec_mlir.linking.referring": ("Referred", "refer"),
    "cachec_mlir.linking.relinking": ("Referenced", "relink", "relink_by_reference"),
    "cachec_mlir.linking.renames": ("Marked", "Renames", "mark", "recorded"),
    "cachec_mlir.writing": ("Linked", "Stripped"),
    "cachec_mlir.text.stripping": ("MINIMUM",),
}

__all__ = [
    "ALIGNMENT",
    "MINIMUM",
    "Blob",
    "Bytecode",
    "Linked",
    "Marked",
    "MlirPlugin",
    "MlirProgram",
    "Referenced",
    "Referred",
    "Renames",
    "Resource",
    "Resources",
    "Stripped",
    "Topologies",
    "canonical",
    "is_bytecode",
    "link",
    "load",
    "mark",
    "plugin",
    "program",
    "recorded",
    "refer",
    "relink",
    "relink_by_reference",
    "strip",
    "topology",
]

#: The object behind the entry point ``mlir`` of the group ``cachec.plugins``.
plugin = MlirPlugin()

__getattr__, __dir__ = lazily(globals(), _HOMES)
