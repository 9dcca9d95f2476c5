"""``strip`` and ``link`` of a module, text or bytecode."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from cachec.errors import LinkError, UsageError
from cachec.weights.manifest import Manifest
from cachec_mlir.blobs import BUFFER_ALIGNMENT
from cachec_mlir.bytecode.reader import Bytecode, is_bytecode
from cachec_mlir.bytecode.rewriter import UnlinkedBytecode, strip_bytecode
from cachec_mlir.file_writer import LinkResult, StripResult, write
from cachec_mlir.module_input import Source
from cachec_mlir.text.linker import UnlinkedText
from cachec_mlir.text.stripper import MINIMUM, SCOPE, Target, strip_text
from cachec_mlir.weight_binding import Alignment, Weights, bind, check_link, unused_names

#: A module with missing resources.
Unlinked = UnlinkedText | UnlinkedBytecode

_OF_TEXT = "link: inline= and references= are for text; in bytecode only MLIR finds constants"


def strip(
    source: Source, *, to: Target = "resource", scope: str = SCOPE, minimum: int = MINIMUM, checked: bool = True
) -> StripResult:
    """Return the module without the bytes of weights, and these in place; see ``strip_text`` and ``strip_bytecode``.

    to: the form of a weight in the stripped text: ``resource``, ``parameter`` (IREE, of ``scope``), ``external``
    (ml_program), ``undefined`` (memref). minimum: the size from which a constant of a text becomes a weight. checked:
    whether digits are checked now, and not only when a weight is read.
    Raises CheckpointError (naming the byte), OSError, UsageError.
    """
    if not is_bytecode(source):
        return strip_text(source, to=to, scope=scope, minimum=minimum, checked=checked)
    if to != "resource":
        raise UsageError(f"strip: to={to!r} is for text; print the bytecode as text with its own MLIR first")
    return strip_bytecode(source)


def open_unlinked(ir: Source | Bytecode, references: Target = "resource", scope: str = SCOPE) -> Unlinked:
    """Open a module, text or bytecode, with the names of its missing resources."""
    if not isinstance(ir, Bytecode) and not is_bytecode(ir):
        return UnlinkedText(ir, references, scope)
    if references != "resource":
        raise UsageError(_OF_TEXT)
    return UnlinkedBytecode(ir)


def link(
    ir: Source | Bytecode | Unlinked,
    weights: Weights,
    target: str | os.PathLike[str],
    *,
    references: Target = "resource",
    scope: str = SCOPE,
    names: Mapping[str, str] | None = None,
    manifest: Manifest | None = None,
    inline: Collection[str] = (),
    alignment: Alignment = None,
    fsync: bool = False,
) -> LinkResult:
    """Write ``target``: the module, text or bytecode, with the bytes of all missing resources. All, or nothing.

    weights: a weight set, or the resources of another module (``strip(older).resources``). alignment: in bytes, for all
    of them, or by name in ``weights``. By default a resource keeps its own, and a weight gets MLIR's for its type: the
    size of an element, or 16 for an unknown type. Bytecode with an alignment of more than 16 can be read from a file
    only, not from a pipe. names: name in the module -> name in ``weights``, for those that differ. manifest: exactly
    the required weights, by their names in the module. Resources with bytes in the module stay.

    For a text, references: the form of weights in it (see ``strip_text``); each becomes a resource again. scope: of
    parameters. inline: names that become ``dense<"0x...">`` instead.

    Raises LinkError (a name is missing, has bytes already, or is not of the size or type that the module or the
    manifest states; bytecode would have an alignment of more than 4096, which MLIR's tools can't read),
    CheckpointError, WeightsChanged, OSError, UsageError.
    """
    lacking = ir if isinstance(ir, UnlinkedText | UnlinkedBytecode) else open_unlinked(ir, references, scope)
    if inline and isinstance(lacking, UnlinkedBytecode):
        raise UsageError(_OF_TEXT)
    check_link(lacking.there, weights, names, alignment)
    strange = sorted(set(inline) - set(lacking.wanted))
    if strange:
        raise LinkError(f"inline= names {strange[0]!r}, which the module does not use, or has bytes of")
    bound = bind(lacking.wanted, weights, names, manifest, alignment=alignment)
    nbytes = write(target, lacking.pieces(bound, inline), digits=lacking.digits, fsync=fsync)
    is_file_only = isinstance(lacking, UnlinkedBytecode) and any(
        alignment > BUFFER_ALIGNMENT for alignment in lacking.alignments() | {each.alignment for each in bound.values()}
    )
    return LinkResult(nbytes, unused_names(weights, bound, names), is_file_only)
