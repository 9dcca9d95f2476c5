"""cachec for MLIR without MLIR: strip, link and hash modules, as text or bytecode; no byte of a weight is parsed.

``str`` and ``PathLike`` are paths everywhere, bytes are modules in memory.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from cachec.errors import UsageError
from cachec_mlir.blobs import ALIGNMENT, Blob, Resource, Resources
from cachec_mlir.bytecode import Bytecode, is_bytecode
from cachec_mlir.inputs import Source
from cachec_mlir.plugin import MlirPlugin
from cachec_mlir.rewriting import Linked, Stripped, Weights, link_bytecode, strip_bytecode
from cachec_mlir.text_rewriting import MINIMUM, link_text, strip_text
from cachec_mlir.topology import canonical, topology

__all__ = [
    "ALIGNMENT",
    "MINIMUM",
    "Blob",
    "Bytecode",
    "Linked",
    "MlirPlugin",
    "Resource",
    "Resources",
    "Stripped",
    "canonical",
    "is_bytecode",
    "link",
    "plugin",
    "strip",
    "topology",
]

#: The object behind the entry point ``mlir`` of the group ``cachec.plugins``.
plugin = MlirPlugin()


def strip(source: Source, *, minimum: int = MINIMUM) -> Stripped:
    """The module without weight bytes, and these in place; see ``strip_text`` and ``strip_bytecode``.

    minimum: bytes from which a constant of a text is lifted. Raises CheckpointError (naming the byte), OSError.
    """
    return strip_bytecode(source) if is_bytecode(source) else strip_text(source, minimum=minimum)


def link(
    ir: Source,
    weights: Weights,
    target: str | os.PathLike[str],
    *,
    names: Mapping[str, str] | None = None,
    inline: Collection[str] = (),
    alignment: int = ALIGNMENT,
    fsync: bool = False,
) -> Linked:
    """Write ``target``: the module, text or bytecode, with the bytes that it lacks; see ``link_text`` and
    ``link_bytecode``.

    weights: a weight set, or ``strip(older).resources``. Raises LinkError, CheckpointError, WeightsChanged, OSError.
    """
    if not is_bytecode(ir):
        return link_text(ir, weights, target, names=names, inline=inline, alignment=alignment, fsync=fsync)
    if inline:
        raise UsageError("link: inline= is for text; bytecode keeps its constants where no reader but MLIR finds them")
    return link_bytecode(ir, weights, target, names=names, alignment=alignment, fsync=fsync)
