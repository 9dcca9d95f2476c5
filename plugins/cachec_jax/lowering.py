"""JAX functions to StableHLO that takes its weights by name.

JAX prints a function's weights as arguments of ``@main``. IREE wants them as globals whose initial value is a named
parameter, so each weight argument becomes

    util.global private @"weight:NAME" = #flow.parameter.named<"model"::"NAME"> : TYPE
    %w = util.global.load immutable @"weight:NAME" : TYPE

The rewrite works on the operations, through MLIR's Python bindings. JAX's own MLIR does not know IREE's ``util``
dialect and prints these two in MLIR's generic notation; they get IREE's own, which is shorter, line by line afterwards.
What the function closes over stays in the program by value.
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

    fn: gets the tree of the weights as its first argument, a dict name -> array where they hang in none
    (``WeightSet.from_tree``, ``tree``). weights: only its specs are looked at. inputs: whatever
    ``jax.jit`` takes as an example (``jax.ShapeDtypeStruct``, arrays, trees of them): shape and dtype count. platform:
    what JAX lowers for. symbols: ``alpha`` names the weights by their order of use, so that layers that differ in the
    names of their weights alone share what is compiled; ``cachec.link`` finds the caller's weights by what the program
    remembers (``manifest.callers``).

    Raises WeightReadError where ``fn`` asks for the bytes of a weight outside of its argument;
    what ``fn`` itself raises passes through; PluginError where a weight has no form in JAX's current configuration
    (64 bits without ``jax_enable_x64``); UnsupportedVersion where the installed JAX lowers in another way than the
    releases that were tried; ProcessBoundProgram where ``fn`` calls Python back (``jax.pure_callback``,
    ``io_callback``, ``jax.debug.print``, custom partitioning), as no other process has the function that is called.
    """
    import jax

    lowered = (
        jax.jit(fn, keep_unused=True)
        .trace(abstract(weights), *inputs, **named_inputs)
        .lower(lowering_platforms=(platform,))
    )
    return _stripped(lowered, weights, symbols=symbols, is_first=True)


def strip(lowered: Any, weights: WeightSet, *, symbols: str | None = None) -> Program:
    """The program in a ``jax.stages.Lowered``, whose one argument that is the tree of the weights becomes names.

    ``lowered`` itself stays as it is. symbols: as of ``to_stablehlo``.
    Raises PluginError where no argument or several are such a tree, ProcessBoundProgram as ``to_stablehlo``.
    """
    return _stripped(lowered, weights, symbols=symbols, is_first=False)


def _stripped(lowered: Any, weights: WeightSet, *, symbols: str | None, is_first: bool) -> Program:
    """is_first: the weights are the first argument, whatever the others are, and JAX has kept all arguments."""
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
    from cachec_mlir.hashes import topology
    from cachec_mlir.text.symbols import alpha, alpha_manifest

    ir, names = alpha(text.encode(), to="parameter", scope=SCOPE, taken=weights)
    manifest = alpha_manifest(weights.manifest, names)
    return Program(ir, format=FORMAT, manifest=manifest, canonical=topology(ir))


def _text(lowered: Any, weights: WeightSet, *, is_first: bool) -> str:
    from cachec_jax.bound import refuse_lowered

    refuse_lowered(lowered)
    positions, count = _weight_arguments(lowered, weights, is_first=is_first)
    return _rewritten(lowered.compiler_ir("stablehlo"), positions, count)


def fold(program: Program, weight: Weight) -> Program:
    """The program with one weight as a constant by value, so that the compiler can compute with it.

    The new program's manifest does not have the weight any more, and knows its bytes: ``cachec.link`` takes no others.
    Reads the weight's bytes. Raises PluginError where the program has no such parameter of that type.
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
    """The tree of the weights (a dict by name, where they hang in none) with ``jax.ShapeDtypeStruct`` for leaves."""
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
    wanted = dict(jax.tree_util.tree_flatten_with_path(names(weights))[0])
    fitting = [places for places in arguments.values() if places.keys() == wanted.keys()][: 1 if is_first else None]
    if wanted and len(fitting) != 1:
        raise PluginError(
            f"{len(fitting)} arguments of the lowered function are the tree of the weights, a dict of their names "
            f"where they hang in none ({len(wanted)}, first {next(iter(wanted.values()))!r}); one is needed"
        )
    # JAX drops arguments that nothing uses, unless jit was told keep_unused=True, as by to_stablehlo.
    order = range(len(leaves)) if is_first else sorted(internals.lowering_record(lowered._lowering)["kept_var_idx"])
    position = {index: place for place, index in enumerate(order)}
    chosen = {index: wanted[path] for path, index in fitting[0].items()} if wanted else {}
    return {position[index]: name for index, name in chosen.items() if index in position}, len(position)


def names(weights: WeightSet) -> Any:
    """The tree of the weights, or a dict, with their names for leaves."""
    nesting = weights.layout.nesting
    return {name: name for name in weights} if nesting is None else nesting.build(str)


def _rewritten(module: Any, positions: Mapping[int, str], count: int) -> str:
    """The text of a copy of ``module`` in which the arguments of ``@main`` at ``positions`` are named parameters."""
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
            return _pretty(str(copy.get_asm(enable_debug_info=False)), types)
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
        # Values that the function closes over then are arguments, outside of the text, and would be in no key.
        raise PluginError(
            f"the lowered @main has {len(inputs)} arguments where the function has {count}; "
            "jax_use_simplified_jaxpr_constants must be off"
        )
    first = block.operations[0]
    types = {}
    for position, name in sorted(positions.items(), key=lambda item: item[1]):
        kind = block.arguments[position].type
        symbol = f"weight:{name}"
        if name not in types:  # one weight may hang in a tree twice
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
    left = [index for index in range(len(inputs)) if index not in positions]
    if "arg_attrs" in main.attributes:
        attributes = ir.ArrayAttr(main.attributes["arg_attrs"])
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([attributes[index] for index in left])
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([inputs[index] for index in left], results))
    return types


def _pretty(text: str, types: Mapping[str, str]) -> str:
    """``text`` with the operations that ``_name_weights`` made in IREE's own notation. Any other line stays."""
    from cachec_mlir.text.scanning import quoted

    short = {}
    for name, kind in types.items():
        symbol = quoted(f"weight:{name}")
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
    from cachec_mlir.text.references import written

    return f"{written('parameter', SCOPE, name).decode()} : {kind}"
