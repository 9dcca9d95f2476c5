"""Conversion of MLIR modules to programs: stripped IR with a manifest, and the weights in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from cachec.base.hashing import FileDigests, digest_bytes
from cachec.errors import UsageError
from cachec.model import WeightSpec
from cachec.programs.program import Program
from cachec.programs.weight_files import digests_here
from cachec.weights import WeightSet
from cachec.weights.manifest import Manifest
from cachec_mlir.blobs import Resources, element_type, spec_of
from cachec_mlir.bytecode.reader import Bytecode, is_bytecode
from cachec_mlir.bytecode.rewriter import strip_bytecode
from cachec_mlir.live.bindings import Bindings, bindings_of, generic
from cachec_mlir.live.live_modules import BytecodeFile, parse_stripped
from cachec_mlir.module_input import Source, open_input
from cachec_mlir.text.alpha_renaming import alpha, alpha_manifest
from cachec_mlir.text.references import references, types
from cachec_mlir.text.stripper import MINIMUM, SCOPE, Target, strip_text
from cachec_mlir.text_cache import PACKAGE, WeightlessText, weightless_texts
from cachec_mlir.topology_hash import cached_topology_of_text, topology

TEXT, BYTECODE = "mlir:text", "mlir:bytecode"

#: Bytes of a text up to which it is read into memory at once, to be remembered.
_WHOLE = 64 << 20


class MlirProgram(NamedTuple):
    """A module in its two halves."""

    program: Program
    #: By the names in the module.
    weights: WeightSet
    #: New names, of weights that were constants.
    lifted: tuple[str, ...]


def program(
    source: Source | Any,
    *,
    to: Target = "resource",
    scope: str = SCOPE,
    minimum: int = MINIMUM,
    format: Literal["mlir:text", "mlir:bytecode"] | None = None,
    locations: bool = False,
    symbols: Literal["alpha"] | None = None,
    bindings: str | None = None,
    digests: FileDigests | None = None,
) -> MlirProgram:
    """Return the program of a module (text, bytecode, a live ``ir.Module``), and its weights in place, without a copy.

    Specs have the shape and dtype of the weights' types in the module. Only MLIR finds these in bytecode; without
    ``bindings`` the weights are vectors of uint8. Constants that stay in the IR count by value. For ``to``, ``scope``
    and ``minimum`` (of text) see ``strip_text``.

    The program's part of a key is the topology of its IR (see ``topology``). So a compiler must make the same from two
    modules that differ only in names of values, places and comments. For a compiler that keeps debug information pass
    locations=True: then every byte of the IR counts.

    format: of the program's IR, by default that of ``source``, and text for a live module; bindings (``iree``, ``jax``)
    translate. Text works with any LLVM version, bytecode only with its own.

    symbols: ``alpha`` renames the weights in the order of use, so that layers that differ only in the names of their
    weights share a program. The program records the names (``manifest.callers``), and ``cachec.link`` uses them. For
    text only.

    digests: those of a cache, which then caches facts about a text between processes, by its content. The default are
    those of the cache of the running stage.

    A live module is written to a temporary file, which stays for as long as its weights do. Raises CheckpointError
    (naming the byte), OSError, UsageError, PluginError.
    """
    digests = digests_here() if digests is None else digests
    live = bindings_of(source)
    if live is not None and bindings not in {None, live}:
        raise UsageError(f"program: a module of {live!r} can't be read through bindings={bindings!r}")
    if format not in {None, TEXT, BYTECODE}:
        raise UsageError(f"program: format expected {TEXT!r} or {BYTECODE!r}, found {format!r}")
    if symbols not in {None, "alpha"}:
        raise UsageError(f"program: symbols expected 'alpha' or None, found {symbols!r}")
    if live is not None or is_bytecode(source):
        if to != "resource":
            raise UsageError(f"program: to={to!r} is for text; print the module as text with its constants first")
        written = BytecodeFile(source) if live is not None else None
        form = format or (TEXT if live is not None else BYTECODE)
        made = _of_bytecode(source, written, form, locations, live or bindings, digests)
    elif bindings is None and format != BYTECODE and digests.memory is not None:
        made = _program_from_cache(source, to, scope, minimum, locations, digests)
    else:
        made = _of_text(source, to, scope, minimum, format or TEXT, locations, bindings, digests)
    if symbols == "alpha":
        if made.program.format != TEXT:
            raise UsageError("program: symbols='alpha' is for text; say format='mlir:text' too")
        made = _rename_symbols(made, to, scope, locations, digests)
    return made


def _program_from_cache(
    source: Source, to: Target, scope: str, minimum: int, locations: bool, digests: FileDigests
) -> MlirProgram:
    """``_of_text``; a text without weights is not parsed where the cache knows it. One is read whole for that, so that
    what is asked is what is handed out."""
    module = open_input(source)
    if module.size > _WHOLE:
        return _of_text(source, to, scope, minimum, TEXT, locations, None, digests)
    text = module.at(0, module.size, "the module")
    module.check()
    known, digest = weightless_texts(digests), digest_bytes(text)
    about = (PACKAGE, digest, to, scope, str(minimum), str(locations))
    found = known.recall(*about)
    if found is not None and (found.topology is None) == locations:
        with suppress(ValueError):  # damaged: it is found out again
            manifest = Manifest.of(found.specs())
            ir = Program.stored(
                format=TEXT, manifest=manifest, ir_digest=digest, load=lambda: text, canonical=found.topology
            )
            return MlirProgram(ir, Resources({}, [].__getitem__).weights(), ())
    made = _of_text(source, to, scope, minimum, TEXT, locations, None, digests)
    if made.program.ir == text and not made.weights and not made.lifted:
        known.keep(WeightlessText.of(made.program.canonical, made.program.manifest.weights.values()), *about)
    return made


def _of_text(
    source: Source,
    to: Target,
    scope: str,
    minimum: int,
    form: str,
    locations: bool,
    bindings: str | None,
    digests: FileDigests,
) -> MlirProgram:
    stripped = strip_text(source, to=to, scope=scope, minimum=minimum)
    weights = stripped.resources.weights()
    ir = stripped.ir
    if form == BYTECODE:
        module = _translator(bindings, BYTECODE).parse(ir, open_input(source).label)
        with BytecodeFile(module) as written:
            ir = written.bytecode.input.at(0, written.bytecode.input.size, "the module")
    used = types(references(open_input(stripped.ir), stripped.ir, to, scope))
    manifest = _manifest(used, weights)
    return MlirProgram(_program(ir, form, manifest, locations, bindings, digests), weights, stripped.lifted)


def _of_bytecode(
    source: Source | Any,
    written: BytecodeFile | None,
    form: str,
    locations: bool,
    bindings: str | None,
    digests: FileDigests,
) -> MlirProgram:
    module = Bytecode(source) if written is None else written.bytecode
    stripped = strip_bytecode(module)
    ir, used = stripped.ir, {name: [""] for name in module.names_without_bytes}
    specs: dict[str, WeightSpec] = {}
    if bindings is not None or form == TEXT:
        live = source if written is not None else parse_stripped(_translator(bindings, form), module)
        text = generic(live, locations=locations)
        used = types(references(open_input(text), text, "resource", ""))
        specs = _specs(used, stripped.resources)
        ir = text if form == TEXT else ir
    weights = stripped.resources.weights(specs)
    if written is not None:
        written.keep_for(weights)
    return MlirProgram(_program(ir, form, _manifest(used, weights), locations, bindings, digests), weights, ())


def _translator(bindings: str | None, form: str) -> Bindings:
    if bindings is None:
        raise UsageError(f"program: only MLIR translates to {form!r}; say bindings='iree' or bindings='jax'")
    return Bindings(bindings)


def _program(
    ir: bytes, form: str, manifest: Manifest, locations: bool, bindings: str | None, digests: FileDigests
) -> Program:
    """The program; its key is its topology, unless locations count or nothing but MLIR can tell it."""
    if locations or (form == BYTECODE and bindings is None):
        canonical = None
    else:
        canonical = cached_topology_of_text(ir, digests) if bindings is None else topology(ir, bindings=bindings)
    return Program(ir, format=form, manifest=manifest, canonical=canonical)


def _specs(used: Mapping[str, Sequence[str]], resources: Resources) -> dict[str, WeightSpec]:
    """Specs of resources by the types that they are used with; none for one with several, or with one of no dtype."""
    specs: dict[str, WeightSpec] = {}
    for name, resource in resources.items():
        kinds = used.get(name, ())
        if len(kinds) == 1 and element_type(kinds[0]) is not None:
            specs[name] = resource._replace(type=kinds[0]).spec()
    return specs


def _manifest(used: Mapping[str, Sequence[str]], weights: WeightSet) -> Manifest:
    """The specs of the weights, and of those that the module refers to without having their bytes."""
    specs = dict(weights.specs)
    for name, kinds in used.items():
        if name in specs:
            continue
        spec = spec_of(name, kinds[0]) if len(kinds) == 1 else None
        if spec is None:
            raise UsageError(
                f"program: weight {name!r} has no bytes in the module, and one static type expected of it, found "
                f"{', '.join(sorted(kinds)) or 'none'}; link its bytes first, or (bytecode) say bindings="
            )
        specs[name] = spec
    return Manifest.of(specs)


def _rename_symbols(made: MlirProgram, to: Target, scope: str, locations: bool, digests: FileDigests) -> MlirProgram:
    ir, names = alpha(made.program.ir, to=to, scope=scope, taken=made.program.manifest.weights)
    manifest = alpha_manifest(made.program.manifest, names)
    return made._replace(program=_program(ir, TEXT, manifest, locations, None, digests))
