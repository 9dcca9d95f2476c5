"""cachec for MLIR without MLIR: strip, link and hash modules, as text or bytecode; no byte of a weight is parsed.

``str`` and ``PathLike`` are paths everywhere, bytes are modules in memory.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from cachec.errors import UsageError
from cachec.topology import Manifest
from cachec_mlir.blobs import ALIGNMENT, Blob, Resource, Resources
from cachec_mlir.bytecode import Bytecode, is_bytecode
from cachec_mlir.inputs import Source
from cachec_mlir.modules import load
from cachec_mlir.plugin import MlirPlugin
from cachec_mlir.programs import MlirProgram, program
from cachec_mlir.referring import Referred, refer
from cachec_mlir.relinking import Referenced, relink, relink_by_reference
from cachec_mlir.renames import Marked, Renames, mark, recorded
from cachec_mlir.rewriting import Linked, Stripped, Weights, link_bytecode, strip_bytecode
from cachec_mlir.text_rewriting import link_text
from cachec_mlir.text_stripping import MINIMUM, SCOPE, Target, strip_text
from cachec_mlir.topology import Topologies, canonical, topology

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


def strip(
    source: Source, *, to: Target = "resource", scope: str = SCOPE, minimum: int = MINIMUM, checked: bool = True
) -> Stripped:
    """The module without weight bytes, and these in place; see ``strip_text`` and ``strip_bytecode``.

    to: what stands for a weight in a text: ``resource``, ``parameter`` (IREE, of ``scope``), ``external``
    (ml_program), ``undefined`` (memref). minimum: bytes from which a constant of a text is lifted. checked: whether
    digits are looked at now, and not only when a weight is read.
    Raises CheckpointError (naming the byte), OSError, UsageError.
    """
    if not is_bytecode(source):
        return strip_text(source, to=to, scope=scope, minimum=minimum, checked=checked)
    if to != "resource":
        raise UsageError(f"strip: to={to!r} is for text; print the bytecode as text with its own MLIR first")
    return strip_bytecode(source)


def link(
    ir: Source,
    weights: Weights,
    target: str | os.PathLike[str],
    *,
    references: Target = "resource",
    scope: str = SCOPE,
    names: Mapping[str, str] | None = None,
    manifest: Manifest | None = None,
    inline: Collection[str] = (),
    alignment: int = ALIGNMENT,
    fsync: bool = False,
) -> Linked:
    """Write ``target``: the module, text or bytecode, with the bytes that it lacks; see ``link_text`` and
    ``link_bytecode``.

    weights: a weight set, or ``strip(older).resources``. Raises LinkError, CheckpointError, WeightsChanged, OSError.
    """
    if is_bytecode(ir):
        if inline or references != "resource":
            raise UsageError("link: inline= and references= are for text; in bytecode only MLIR finds constants")
        return link_bytecode(ir, weights, target, names=names, manifest=manifest, alignment=alignment, fsync=fsync)
    return link_text(
        ir,
        weights,
        target,
        references=references,
        scope=scope,
        names=names,
        manifest=manifest,
        inline=inline,
        alignment=alignment,
        fsync=fsync,
    )
