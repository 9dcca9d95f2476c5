"""Lowering of JAX functions to StableHLO that takes its weights by name.

JAX prints a function's weights as arguments of ``@main``. IREE needs globals with named parameters as initial values,
so each weight argument becomes

    util.global private @"weight:NAME" = #flow.parameter.named<"model"::"NAME"> : TYPE
    %w = util.global.load immutable @"weight:NAME" : TYPE

The rewrite changes operations, through MLIR's Python bindings. JAX's own MLIR does not know IREE's ``util`` dialect, so
it prints these two in MLIR's generic notation. A second step replaces these lines by IREE's shorter notation.
Closed-over arrays stay in the program by value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cachec.errors import PluginError, UnsupportedVersion, UsageError
from cachec.programs.program import Program
from cachec.programs.supported_versions import GONE, version_of
from cachec.weights import Weight, WeightSet
from cachec_jax import internals

#: The format of every program made here.
FORMAT = "jax:stablehlo"

#: IREE's name for the archive that holds the parameters (``--parameters=model=FILE``).
SCOPE = "model"

#: The module's name; JAX would take it from the function's.
_MODULE = "program"


def to_stablehlo(
    fn: Callable[..., Any],
    weights: WeightSet,
    *inputs: Any,
    platform: str = "cpu",
    symbols: str | None = None,
    **named_inputs: Any,
) -> Program:
    """Lower ``fn(weights, *inputs)`` to StableHLO with its weights by name. Nothing is allocated, no device is used.

    fn: its first argument is the tree of the weights, or a dict name -> array if they have no tree
    (``WeightSet.from_tree``, ``tree``). weights: only the specs are read. inputs: examples for ``jax.jit``
    (``jax.ShapeDtypeStruct``, arrays, trees of them); shape and dtype count. platform: the target of JAX's lowering.
    symbols: ``alpha`` names the weights by their order of use, so that layers with other weight names share a program;
    ``cachec.link`` finds the caller's weights by ``manifest.callers``.

    Raises WeightReadError if ``fn`` reads the bytes of a weight outside of its argument; PluginError for a weight that
    JAX's current configuration does not support (64 bits without ``jax_enable_x64``); UnsupportedVersion if the
    installed JAX lowers in another way than the tried releases; ProcessBoundProgram if ``fn`` has Python callbacks
    (``jax.pure_callback``, ``io_callback``, ``jax.debug.print``, custom partitioning), which other processes lack. An
    error that ``fn`` raises passes through.
    """
    import jax

    lowered = (
        jax.jit(fn, keep_unused=True)
        .trace(abstract(weights), *inputs, **named_inputs)
        .lower(lowering_platforms=(platform,))
    )
    return _strip(lowered, weights, symbols=symbols, is_first=True)


def strip(lowered: Any, weights: WeightSet, *, symbols: str | None = None) -> Program:
    """Return the program of a ``jax.stages.Lowered``, with the argument that is the tree of the weights as names.

    ``lowered`` itself does not change. symbols: as for ``to_stablehlo``. Raises PluginError unless exactly one argument
    is such a tree, and ProcessBoundProgram as ``to_stablehlo`` does.
    """
    return _strip(lowered, weights, symbols=symbols, is_first=False)


def _strip(lowered: Any, weights: WeightSet, *, symbols: str | None, is_first: bool) -> Program:
    """Strip a lowered function. is_first: the weights are the first argument, and JAX has kept all arguments."""
    try:
        text = _text(lowered, weights, is_first=is_first)
    except (*GONE, UnsupportedVersion) as error:
        raise UnsupportedVersion(
            f"cachec_jax can't name the weights in what JAX {version_of('jax')} lowers ({type(error).__name__}: "
            f"{error}); install a release that docs/compatibility.md lists, or compile with cachec_jax.compile_xla"
        ) from error
    if symbols is None:
        return Program(text, format=FORMAT, manifest=weights.manifest)
    if symbols != "alpha":
        raise UsageError(f"symbols expected 'alpha' or None, found {symbols!r}")
    from cachec_mlir.text.alpha_renaming import alpha, alpha_manifest
    from cachec_mlir.topology_hash import topology

    ir, names = alpha(text.encode(), to="parameter", scope=SCOPE, taken=weights)
    manifest = alpha_manifest(weights.manifest, names)
    return Program(ir, format=FORMAT, manifest=manifest, canonical=topology(ir))


def _text(lowered: Any, weights: WeightSet, *, is_first: bool) -> str:
    from cachec_jax.callbacks import refuse_lowered

    refuse_lowered(lowered)
    positions, count = _weight_arguments(lowered, weights, is_first=is_first)
    return _rewrite(lowered.compiler_ir("stablehlo"), positions, count)


def fold(program: Program, weight: Weight) -> Program:
    """Return the program with one weight as a constant by value, so that the compiler can compute with it.

    The new program's manifest has the hash of the weight's bytes instead of the weight: ``cachec.link`` accepts only
    these bytes. Reads the weight's bytes. Raises PluginError if the program has no such parameter of that type.
    """
    name = weight.name
    data = weight.read()
    start = _parameter(name, "tensor<")
    text = program.text
    begin = text.find(start)
    end = text.find(">", begin + len(start)) + 1
    if program.format != FORMAT or begin < 0 or text.find(start, end) >= 0:
        raise PluginError(f"{program!r} has no parameter {name!r} to fold, or not exactly one")
    kind = text[begin + len(start) - len("tensor<") : end]
    shape = [*map(str, data.shape)]
    if kind.removeprefix("tensor<").removesuffix(">").split("x")[:-1] != shape:
        raise PluginError(f"weight {name!r} has shape {list(data.shape)}, the program's parameter is a {kind}")
    # MLIR takes raw little-endian elements as one hexadecimal string (builtin dialect, DenseElementsAttr).
    constant = f'dense<"0x{data.tobytes().hex().upper()}"> : {kind}' if data.size else f"dense<> : {kind}"
    manifest = program.manifest.without(name).folding({name: (weight.content(),)})
    return Program(text[:begin] + constant + text[end:], format=FORMAT, manifest=manifest)


def abstract(weights: WeightSet) -> Any:
    """Return the tree of the weights, or a dict by name, with ``jax.ShapeDtypeStruct`` for leaves."""
    import jax
    import ml_dtypes
    import numpy as np

    shapes = {}
    for name, spec in weights.specs.items():
        dtype = np.dtype(getattr(ml_dtypes, spec.dtype, spec.dtype))
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise PluginError(
                f"weight {name!r} is {spec.dtype}, which JAX would narrow; set jax_enable_x64, or leave the weight out "
                f"with weights.select(exclude=[{name!r}])"
            )
        shapes[name] = jax.ShapeDtypeStruct(spec.shape, dtype)
    return weights.unflatten(lambda weight: shapes[weight.name])


def _weight_arguments(lowered: Any, weights: WeightSet, *, is_first: bool) -> tuple[dict[int, str], int]:
    """Position among the arguments of ``@main`` -> weight name, and how many arguments there are in all.

    Both from JAX's own record of the signature.
    """
    import jax

    leaves = jax.tree_util.tree_flatten_with_path(lowered.args_info)[0]
    # Each leaf is at args_info[0][i]... (positional) or args_info[1][name]...; the argument is the first two steps.
    arguments: dict[tuple[Any, ...], dict[tuple[Any, ...], int]] = {}
    for index, (path, _) in enumerate(leaves):
        arguments.setdefault(path[:2], {})[path[2:]] = index
    wanted = dict(jax.tree_util.tree_flatten_with_path(weight_names_tree(weights))[0])
    fitting = [places for places in arguments.values() if places.keys() == wanted.keys()][: 1 if is_first else None]
    if wanted and len(fitting) != 1:
        raise PluginError(
            f"{len(fitting)} arguments of the lowered function are the tree of the weights, or a dict of their names "
            f"if they have no tree ({len(wanted)}, first {next(iter(wanted.values()))!r}); one is needed"
        )
    # JAX drops unused arguments, unless jit got keep_unused=True, as from to_stablehlo.
    order = range(len(leaves)) if is_first else sorted(internals.lowering_record(lowered._lowering)["kept_var_idx"])
    position = {index: place for place, index in enumerate(order)}
    chosen = {index: wanted[path] for path, index in fitting[0].items()} if wanted else {}
    return {position[index]: name for index, name in chosen.items() if index in position}, len(position)


def weight_names_tree(weights: WeightSet) -> Any:
    """Return the tree of the weights, or a dict, with their names for leaves."""
    nesting = weights.layout.nesting
    return {name: name for name in weights} if nesting is None else nesting.build(str)


def _rewrite(module: Any, positions: Mapping[int, str], count: int) -> str:
    """Return the text of ``module`` with named parameters for the arguments of ``@main`` at ``positions``."""
    ir = internals.ir

    context = module.context
    with context, ir.Location.unknown():
        allowed = context.allow_unregistered_dialects
        context.allow_unregistered_dialects = True
        try:
            copy = module.operation.clone()
            copy.attributes["sym_name"] = ir.StringAttr.get(_MODULE)
            types = _name_weights(copy, positions, count, ir)
            copy.verify()
            return _to_iree_notation(str(copy.get_asm(enable_debug_info=False)), types)
        finally:
            context.allow_unregistered_dialects = allowed


def _name_weights(module: Any, positions: Mapping[int, str], count: int, ir: Any) -> dict[str, str]:
    """Change ``module`` in place; returns the MLIR type of each weight by name."""
    functions = module.regions[0].blocks[0].operations
    main = next(op for op in functions if ir.StringAttr(op.attributes["sym_name"]).value == "main")
    block = main.regions[0].blocks[0]
    signature = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    inputs, results = signature.inputs, signature.results
    if len(inputs) != count:
        # With this option, closed-over values are arguments outside of the text, and would be in no key.
        raise PluginError(
            f"the lowered @main has {len(inputs)} arguments where the function has {count}; "
            "jax_use_simplified_jaxpr_constants must be off"
        )
    first = block.operations[0]
    types = {}
    for position, name in sorted(positions.items(), key=lambda item: item[1]):
        kind = block.arguments[position].type
        symbol = f"weight:{name}"
        if name not in types:  # one weight may be in a tree twice
            types[name] = str(kind)
            ir.Operation.create(
                "util.global",
                attributes={
                    "sym_name": ir.StringAttr.get(symbol),
                    "sym_visibility": ir.StringAttr.get("private"),
                    "type": ir.TypeAttr.get(kind),
                    "initial_value": ir.Attribute.parse(_parameter(name, types[name])),
                },
                ip=ir.InsertionPoint(main),
            )
        load = ir.Operation.create(
            "util.global.load",
            results=[kind],
            attributes={"global": ir.FlatSymbolRefAttr.get(symbol), "is_immutable": ir.UnitAttr.get()},
            ip=ir.InsertionPoint(first),
        )
        block.arguments[position].replace_all_uses_with(load.results[0])
    for position in sorted(positions, reverse=True):
        block.erase_argument(position)
    remaining = [index for index in range(len(inputs)) if index not in positions]
    if "arg_attrs" in main.attributes:
        attributes = ir.ArrayAttr(main.attributes["arg_attrs"])
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([attributes[index] for index in remaining])
    main.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get([inputs[index] for index in remaining], results)
    )
    return types


def _to_iree_notation(text: str, types: Mapping[str, str]) -> str:
    """Return ``text`` with the operations of ``_name_weights`` in IREE's notation. All other lines stay."""
    from cachec_mlir.text.scanner import quote

    short = {}
    for name, kind in types.items():
        symbol = quote(f"weight:{name}")
        parameter = _parameter(name, kind)
        generic = f'{{initial_value = {parameter}, sym_name = {symbol}, sym_visibility = "private", type = {kind}}}'
        short[f'"util.global"() {generic} : () -> ()'] = f"util.global private @{symbol} = {parameter}"
        short[f'"util.global.load"() {{global = @{symbol}, is_immutable}} : () -> {kind}'] = (
            f"util.global.load immutable @{symbol} : {kind}"
        )
    lines = text.split("\n")
    for number, line in enumerate(lines):
        start = line.find('"util.global')
        if start >= 0 and line[start:] in short:
            lines[number] = line[:start] + short[line[start:]]
    return "\n".join(lines)


def _parameter(name: str, kind: str) -> str:
    from cachec_mlir.text.references import reference_text

    return f"{reference_text('parameter', SCOPE, name).decode()} : {kind}"
