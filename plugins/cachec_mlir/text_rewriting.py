"""MLIR text with other resources: stripped of its bytes, or linked with those of another module or a weight set.

What is neither a blob nor a large constant is kept byte for byte, comments and spaces included.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping

from cachec.errors import LinkError, UsageError
from cachec.weights.dtypes import SIZES
from cachec_mlir.blobs import ALIGNMENT, Blob, Bound, Resource, Resources, element_type, offered
from cachec_mlir.inputs import Input, Source, open_input
from cachec_mlir.rewriting import Linked, Piece, Stripped, Weights, write
from cachec_mlir.text import (
    Constant,
    Marks,
    Trailer,
    blob_of,
    check_digits,
    key_literal,
    name_of,
    scan,
    unescaped,
    uses,
)

#: Bytes from which a constant is a weight: MLIR itself prints fewer elements as numbers.
MINIMUM = 256
_PREFIX = "lifted_"


def strip_text(source: Source, *, minimum: int = MINIMUM) -> Stripped:
    """The module without the bytes of builtin's resources, and with ``dense<"0x...">`` of ``minimum`` bytes or more as
    ``dense_resource<lifted_N>``, counted in the order of the text.

    What stays, and is in a hash by value: smaller constants, splats, lists of numbers, constants of packed bits
    (``i1``, ``i4``), resources of other dialects, external resources. The resources are the original text, decoded when
    they are looked at, with the types that the module states. Raises CheckpointError (naming the byte), OSError.
    """
    module = open_input(source)
    marks = scan(module)
    text = module.view()
    found: dict[str, Resource] = {}
    edits: list[tuple[int, int, bytes]] = []
    for trailer in marks.trailers:
        kept, blobs = _split(module, trailer)
        found |= blobs
        if blobs:
            edits.append((trailer.start, trailer.end, kept))
    lifted: list[str] = []
    keys = [entry.key for trailer in marks.trailers for entry in trailer.entries]
    prefix = _free(_PREFIX, keys, _text(module, marks))
    for constant in marks.constants:
        resource = _lifted(module, constant, f"{prefix}{len(lifted)}", minimum)
        if resource is not None:
            lifted.append(resource.name)
            found[resource.name] = resource
            edits.append((constant.dense, constant.close, f"dense_resource<{resource.name}>".encode()))
    out: list[bytes] = []
    at = 0
    for start, end, new in sorted(edits):
        out += [bytes(text[at:start]), new]
        at = end
    ir = b"".join([*out, bytes(text[at:])])
    module.check()
    resources = _typed(module, found, ir)
    numbers = {name: number for number, name in enumerate(resources)}
    return Stripped(ir, Resources(numbers, list(resources.values()).__getitem__), tuple(lifted))


def link_text(
    ir: Source,
    weights: Weights,
    target: str | os.PathLike[str],
    *,
    names: Mapping[str, str] | None = None,
    inline: Collection[str] = (),
    alignment: int = ALIGNMENT,
    fsync: bool = False,
) -> Linked:
    """Write ``target``: the module with bytes for every ``dense_resource`` that it has none for. All, or nothing.

    inline: names that become ``dense<"0x...">`` again. Everything else as for ``link_bytecode``; LinkError also where
    a size is not that of the type in the module.
    """
    if alignment < 1 or alignment & (alignment - 1):
        raise UsageError(f"link: alignment expected a power of two, found {alignment}")
    module = open_input(ir)
    marks = scan(module)
    text = bytes(module.view()[:])
    there = {name_of(e): e for trailer in marks.trailers for e in trailer.entries if e.section == "dialect_resources"}
    used = [(start, end, unescaped(module, key, start), kind) for start, end, key, kind in uses(text)]
    wanted = list(dict.fromkeys(name for _, _, name, _ in used if name not in there))
    double = set(there).intersection(weights if names is None else {*weights, *names})
    if double:
        raise LinkError(
            f"the module has bytes of {min(double)!r}, and so has what it is linked to; strip one, or select others"
        )
    strange = sorted(set(inline) - set(wanted))
    if strange:
        raise LinkError(f"inline= names {strange[0]!r}, which the module does not use, or has bytes of")
    bound = offered(weights, wanted, names, alignment)
    for _, _, name, kind in used:
        if name in bound:
            _fits(name, kind, bound[name])
    pieces: list[Piece] = []
    at = 0
    for start, end, name, _ in used:
        if name in inline:
            pieces += [text[at:start], b'dense<"0x', bound[name].blob, b'">']
            at = end
    pieces.append(text[at:])
    pieces += _trailer({name: each for name, each in bound.items() if name not in inline})
    nbytes = write(target, pieces, digits=True, fsync=fsync)
    taken = {(names or {}).get(name, name) for name in bound}
    return Linked(nbytes, tuple(sorted(name for name in weights if name not in taken)))


def _split(module: Input, trailer: Trailer) -> tuple[bytes, dict[str, Resource]]:
    """The trailer without builtin's blobs (empty, if nothing is left), and these by name."""
    text = module.view()
    blobs: dict[str, Resource] = {}
    kept: dict[bytes, dict[bytes, list[bytes]]] = {}
    for entry in trailer.entries:
        name = name_of(entry)
        resource = blob_of(module, entry, name) if entry.group == "builtin" else None
        if resource is not None:
            blobs[name] = resource
        else:
            item = entry.raw_key + b": " + bytes(text[entry.start : entry.end])
            kept.setdefault(entry.raw_section, {}).setdefault(entry.raw_group, []).append(item)
    if not kept:
        return b"", blobs
    sections = [
        _dictionary(section, [_dictionary(group, items, b"    ") for group, items in groups.items()], b"  ")
        for section, groups in kept.items()
    ]
    return b"{-#\n  " + b",\n  ".join(sections) + b"\n#-}", blobs


def _dictionary(key: bytes, items: list[bytes], indent: bytes) -> bytes:
    inner = b"\n  " + indent
    return key + b": {" + inner + (b"," + inner).join(items) + b"\n" + indent + b"}"


def _lifted(module: Input, constant: Constant, name: str, minimum: int) -> Resource | None:
    """The constant as a resource, None where it stays inline."""
    digits = constant.end - constant.start - 4
    if constant.dense < 0 or digits < 2 * minimum:
        return None
    what = f"constant {name!r}"
    check_digits(module, constant.start, constant.end, what, digits_only=constant.digits_only)
    known = element_type(constant.type)
    if known is None or known[0] == "bool" or math.prod(known[1]) * SIZES[known[0]] * 2 != digits:
        return None  # packed bits, a splat, a type of another dialect: by value
    first = constant.start + 3
    blob = Blob(
        module.range(first, digits), hexadecimal=True, where=f"{module.label}: constant {name!r}, from byte {first}"
    )
    return Resource(name, "builtin", name, SIZES[known[0]], blob, constant.type)


def _text(module: Input, marks: Marks) -> bytes:
    """The text without its hexadecimal strings."""
    view = module.view()
    spans = [(c.start, c.end) for c in marks.constants] + [(t.start, t.end) for t in marks.trailers]
    at, out = 0, []
    for start, end in sorted(spans):
        out.append(bytes(view[at:start]))
        at = end
    return b"".join([*out, bytes(view[at:])])


def _free(prefix: str, keys: Iterable[str], text: bytes) -> str:
    """A prefix that no key begins with, and that is nowhere in the text."""
    taken = list(keys)
    while prefix.encode() in text or any(key.startswith(prefix) for key in taken):
        prefix += "_"
    return prefix


def _typed(module: Input, found: Mapping[str, Resource], ir: bytes) -> dict[str, Resource]:
    """The resources with the types that they are used with; none for one that is used with several."""
    types: dict[str, set[str]] = {}
    for start, _, key, kind in uses(ir):
        types.setdefault(unescaped(module, key, start), set()).add(kind)
    out: dict[str, Resource] = {}
    for name, resource in found.items():
        kinds = types.get(name, set())
        out[name] = resource._replace(type=next(iter(kinds)) or None) if len(kinds) == 1 else resource
        out[name].spec()
    return out


def _fits(name: str, kind: str, bound: Bound) -> None:
    known = element_type(kind) if kind else None
    if known is None:
        return
    dtype, shape = known
    nbytes = math.prod(shape) * SIZES[dtype]
    packed = dtype == "bool" and bound.blob.nbytes == -(-nbytes // 8)
    if bound.blob.nbytes != nbytes and not packed:
        raise LinkError(f"resource {name!r}: {kind} takes {nbytes} bytes, what it is linked to has {bound.blob.nbytes}")
    spec = bound.spec
    raw = spec is None or (spec.dtype == "uint8" and len(spec.shape) == 1)
    if spec is not None and not raw and (spec.dtype, spec.shape) != (dtype, shape):
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
