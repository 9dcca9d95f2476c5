"""MLIR text linked with the bytes of another module or of a weight set; all else is kept byte for byte."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from cachec.errors import LinkError, UsageError
from cachec.weights.manifest import Manifest
from cachec_mlir.blobs import ALIGNMENT, spec_of
from cachec_mlir.inputs import Source, open_input
from cachec_mlir.offers import Bound, Weights, check_link, check_manifest, offered, unused
from cachec_mlir.text.references import references as find_references
from cachec_mlir.text.scanning import key_literal, name_of, scan
from cachec_mlir.text.skeleton import Skeleton
from cachec_mlir.text.stripping import SCOPE, TARGETS, Target
from cachec_mlir.writing import Linked, Piece, write


def link_text(
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
    """Write ``target``: the module with bytes for every reference that it has none for. All, or nothing.

    references: what stands for weights in the module (see ``strip_text``); each becomes a resource again. scope: of
    parameters. inline: names that become ``dense<"0x...">`` instead. Everything else as for ``link_bytecode``;
    LinkError also where a size or a type is not that of the module.
    """
    if references not in TARGETS:
        raise UsageError(f"link: references expected one of {', '.join(TARGETS)}, found {references!r}")
    module = open_input(ir)
    marks = scan(module)
    skeleton = Skeleton(module, marks)
    text = skeleton.text
    there = {name_of(entry) for entry in marks.resources()}
    used = find_references(module, text, references, scope)
    wanted = list(dict.fromkeys(each.name for each in used if each.name not in there or references != "resource"))
    check_link(there, weights, names, alignment)
    strange = sorted(set(inline) - set(wanted))
    if strange:
        raise LinkError(f"inline= names {strange[0]!r}, which the module does not use, or has bytes of")
    bound = offered(weights, wanted, names, alignment)
    for each in used:
        if each.name in bound:
            check_type(each.name, each.type, bound[each.name])
    if manifest is not None:
        check_manifest(manifest, bound, weights, names)
    pieces: list[Piece] = []
    edits: list[tuple[int, int, list[Piece]]] = []
    for each in used:
        if each.name not in bound:
            continue
        if each.name in inline:
            edits.append(
                (each.start, each.end, [each.before + b'dense<"0x', bound[each.name].blob, b'">' + each.after])
            )
        elif references != "resource":
            resource = b"dense_resource<" + key_literal(each.name).encode() + b">"
            edits.append((each.start, each.end, [each.before + resource + each.after]))
    for trailer, offset in zip(marks.trailers, skeleton.trailers, strict=True):
        edits.append((offset, offset, [bytes(module.view()[trailer.start : trailer.end])]))
    at = 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [skeleton.whole(text[at:start]), *new]
        at = end
    pieces.append(skeleton.whole(text[at:]))
    pieces += _trailer({name: each for name, each in bound.items() if name not in inline})
    module.check()
    nbytes = write(target, pieces, digits=True, fsync=fsync)
    return Linked(nbytes, unused(weights, bound, names))


def check_type(name: str, kind: str, bound: Bound) -> None:
    """Raise LinkError unless what is bound has the size, and where it is known the type, that the module states."""
    known = spec_of(name, kind)
    if known is None:
        return
    nbytes = known.nbytes
    packed = known.dtype == "bool" and bound.blob.nbytes == -(-nbytes // 8)
    if bound.blob.nbytes != nbytes and not packed:
        raise LinkError(f"resource {name!r}: {kind} takes {nbytes} bytes, what it is linked to has {bound.blob.nbytes}")
    spec = bound.spec
    raw = spec is None or (spec.dtype == "uint8" and len(spec.shape) == 1)
    if spec is not None and not raw and (spec.dtype, spec.shape) != (known.dtype, known.shape):
        raise LinkError(f"resource {name!r}: expected {kind}, found {spec.dtype} {list(spec.shape)}")


def _trailer(bound: Mapping[str, Bound]) -> list[Piece]:
    pieces: list[Piece] = []
    for name, each in bound.items():
        head = each.alignment.to_bytes(4, "little").hex().upper()
        before = ",\n      " if pieces else "\n{-#\n  dialect_resources: {\n    builtin: {\n      "
        pieces += [f'{before}{key_literal(name)}: "0x{head}'.encode(), each.blob, b'"']
    if pieces:
        pieces.append(b"\n    }\n  }\n#-}\n")
    return pieces
