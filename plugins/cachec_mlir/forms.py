"""Strip and link of a module in either form, text or bytecode."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from cachec.errors import UsageError
from cachec.weights.manifest import Manifest
from cachec_mlir.blobs import ALIGNMENT
from cachec_mlir.bytecode.reading import is_bytecode
from cachec_mlir.bytecode.rewriting import link_bytecode, strip_bytecode
from cachec_mlir.inputs import Source
from cachec_mlir.offers import Weights
from cachec_mlir.text.linking import link_text
from cachec_mlir.text.stripping import MINIMUM, SCOPE, Target, strip_text
from cachec_mlir.writing import Linked, Stripped


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
