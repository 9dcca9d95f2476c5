"""Compiled and lowered programs of JAX as bytes, and back.

``jax.experimental.serialize_executable`` pickles JAX's part of an executable, so this module does not use it. A stored
program has XLA's own bytes, and the data that JAX needs to call them as JSON (``cachec_jax.program_format``). Neither
this module nor JAX unpickles any of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jaxlib

from cachec.errors import PluginError, UnstorableValue, UnusableHere
from cachec_jax import internals
from cachec_jax.cache_bypass import may_lack_code
from cachec_jax.callbacks import custom_call_targets, refuse_compiled, refuse_lowered
from cachec_jax.internals import core, ir, mlir, pxla, stages, tree_util, xla_client
from cachec_jax.program_format import ProgramForm, Toolchain, TreeForm, check_toolchain, join_program, uses_lapack
from cachec_jax.pytree_codec import form_of, structure_of
from cachec_jax.sharding_codec import (
    aval_form,
    aval_of,
    devices_of,
    layout_form,
    layout_of,
    sharding_form,
    sharding_of,
)

if TYPE_CHECKING:
    from jax._src.interpreters.pxla import AllArgsInfo

#: Platform of a client -> XLA's registry of functions.
_REGISTRIES = {"cpu": "Host", "gpu": "CUDA", "cuda": "CUDA", "rocm": "ROCM"}

_HLO_TARGET = re.compile(r'custom_call_target="([^"]*)"')

#: The attribute with the bytes that a program was decoded from: XLA serialises a loaded program to other bytes.
_BYTES_ATTRIBUTE = "_cachec_stored"


def encode_program(program: jax.stages.Compiled | jax.stages.Lowered, names: Sequence[str] | None = None) -> bytes:
    """Encode a ``jax.stages.Compiled`` or ``Lowered``.

    names: the names of the weights that are the leaves of its first argument, in their order. The decoded program takes
    the used ones as a tuple.

    Raises ProcessBoundProgram for a program with callbacks. Raises PluginError for other objects of this process
    (arrays that can be written), and for placements, types and static data without a stored form.
    """
    if names is None and _BYTES_ATTRIBUTE in vars(program):
        stored: bytes = vars(program)[_BYTES_ATTRIBUTE]
        return stored
    form, data = (_encode_compiled if isinstance(program, stages.Compiled) else _encode_lowered)(program, names)
    return join_program(form, data)


def _encode_compiled(program: jax.stages.Compiled, names: Sequence[str] | None) -> tuple[ProgramForm, bytes]:
    known: Any = getattr(program._executable, "_unloaded_executable", None)
    if type(known) is not pxla.UnloadedMeshExecutable:
        raise UnstorableValue(f"a {type(program._executable).__name__} can't be stored; compile with jax.jit")
    refuse_compiled(known)
    _refuse_process_bound(known, lambda name, other: getattr(known, name, other), program._params)
    form = ProgramForm(
        kind="compiled",
        toolchain=_toolchain(known.backend, internals.devices_of_executable(known)),
        name=known.name,
        results=tuple(map(aval_form, known.output_avals)),
        in_shardings=tuple(map(sharding_form, known.input_shardings)),
        out_shardings=tuple(map(sharding_form, known.output_shardings)),
        in_layouts=tuple(map(layout_form, known.xla_in_layouts)),
        out_layouts=tuple(map(layout_form, known.xla_out_layouts)),
        dispatch_layouts=tuple(map(layout_form, known.dispatch_in_layouts)),
        committed=known.committed,
        targets=_registered_targets(known.backend, _targets_of_hlo(program)),
        **_signature(program, names, known.all_args_info, known.kept_var_idx),
    )
    data = known.backend.serialize_executable(known.xla_executable)
    if may_lack_code(known.backend.platform, data):
        raise UnstorableValue(
            "a Compiled that may be from JAX's compilation cache can't be stored, as XLA leaves its code out; "
            "compile it by cachec_jax.compile_xla, or return the Lowered"
        )
    return form, data


def _encode_lowered(program: jax.stages.Lowered, names: Sequence[str] | None) -> tuple[ProgramForm, bytes]:
    lowering = program._lowering
    if type(lowering) is not pxla.MeshComputation or internals.devices_of_lowering(lowering) is None:
        raise UnstorableValue(f"a {type(lowering).__name__} for no device of this process can't be stored")
    known = internals.lowering_record(lowering)
    refuse_lowered(program)
    _refuse_process_bound(lowering, known.get, program)
    symbolic = known["shape_poly_state"]
    if symbolic is not None and symbolic.uses_dim_vars:
        raise UnstorableValue("a Lowered with symbolic dimensions can't be stored; use jax.export")
    if known["context_mesh"] is not None and not known["context_mesh"].empty:
        raise UnstorableValue("a Lowered with a mesh for its context can't be stored; compile it, or use jax.export")
    form = ProgramForm(
        kind="lowered",
        toolchain=_toolchain(known["backend"], internals.devices_of_lowering(lowering)),
        name=lowering._name,
        results=tuple(map(aval_form, known["global_out_avals"])),
        in_shardings=tuple(map(sharding_form, known["in_shardings"])),
        out_shardings=tuple(map(sharding_form, known["out_shardings"])),
        in_layouts=tuple(map(layout_form, known["in_layouts"])),
        out_layouts=tuple(map(layout_form, known["out_layouts"])),
        dispatch_layouts=(),
        committed=known["committed"],
        options=tuple(lowering._compiler_options_kvs),
        inside=tuple(map(sharding_form, known["intermediate_shardings"])),
        targets=_registered_targets(known["backend"], custom_call_targets(lowering.stablehlo())),
        **_signature(program, names, known["all_args_info"], known["kept_var_idx"]),
    )
    return form, mlir.module_to_bytecode(lowering.stablehlo())


def _refuse_process_bound(made: Any, known: Callable[[str, Any], Any], params: Any) -> None:
    """Raise UnstorableValue for a program that has other objects of this process than callbacks.

    made: the executable or the lowering. params: the object with the types of the arguments, which older releases lack.
    """
    types = getattr(params, "in_types", None) or getattr(params, "_in_types", None)
    if known("mut", None) is not None or (types and any(map(internals.is_high, types[1]))):
        raise UnstorableValue(
            "a program that closes over or takes arrays that can be written (jax.Ref) can't be stored"
        )
    if getattr(made, "const_args", None) or getattr(params, "const_args", None):
        raise UnstorableValue("a program with constants outside of its text can't be stored; pass them as arguments")
    if known("pgle_profiler", None) is not None or jax.process_count() != 1:
        raise UnstorableValue("a program of several processes, or one that is being profiled, can't be stored")
    if internals.is_former_kind(known):
        raise UnstorableValue("a program that XLA places by itself can't be stored; use a NamedSharding, or one device")


def _targets_of_hlo(program: jax.stages.Compiled) -> set[str]:
    """Return the targets of the custom calls of a ``Compiled``."""
    modules = program.runtime_executable().hlo_modules()
    return {target for module in modules for target in _HLO_TARGET.findall(module.to_string())}


def _registered_targets(backend: Any, targets: Collection[str]) -> tuple[str, ...]:
    """Return the targets that are registered functions of this process; XLA itself defines the others."""
    known = xla_client.custom_call_targets(_REGISTRIES.get(backend.platform, backend.platform))
    return tuple(sorted(set(targets).intersection(known)))


def _check_registered(backend: Any, targets: Collection[str]) -> None:
    missing = sorted(set(targets).difference(_registered_targets(backend, targets)))
    if missing:
        raise UnusableHere(
            f"a stored program calls {missing[0]!r}, which is not registered in this process; import the module that "
            "calls jax.ffi.register_ffi_target for it first"
        )


def _toolchain(backend: Any, devices: Any) -> Toolchain:
    ids, kinds = tuple(device.id for device in devices), tuple(device.device_kind for device in devices)
    return Toolchain(jax.__version__, jaxlib.__version__, backend.platform, backend.platform_version, ids, kinds)


def _signature(
    program: jax.stages.Compiled | jax.stages.Lowered,
    names: Sequence[str] | None,
    arguments: AllArgsInfo,
    used: Collection[int],
) -> dict[str, Any]:
    """Return the fields of a ProgramForm about arguments and results. used: the indexes of the arguments in use."""
    in_tree, count = form_of(program.in_tree), len(arguments.in_avals)
    taken: Sequence[int] = range(count)
    if names is not None:  # weights are passed by name, without their tree, and only the used ones
        taken = [index for index in range(count) if index in used or index >= len(names)]
        names = tuple(names[index] for index in taken if index < len(names))
        positional, keywords = in_tree.children
        weights = TreeForm("tuple", None, (TreeForm("leaf"),) * len(names))
        in_tree = TreeForm("tuple", None, (TreeForm("tuple", None, (weights, *positional.children[1:])), keywords))
    leaves = tree_util.tree_leaves(program.args_info, is_leaf=lambda node: isinstance(node, stages.ArgInfo))
    if len(leaves) != count:
        raise UnstorableValue("a program that takes more than its arguments, as the state of objects, can't be stored")
    called = arguments.debug_info.safe_arg_names(count)
    return {
        "names": names,
        "in_tree": in_tree,
        "out_tree": form_of(program.out_tree),
        "arguments": tuple(aval_form(arguments.in_avals[index]) for index in taken),
        "argument_names": tuple(called[index] for index in taken),
        "donated": tuple(place for place, index in enumerate(taken) if leaves[index].donated),
        "kept": tuple(place for place, index in enumerate(taken) if index in used),
        "no_keywords": program._no_kwargs,
    }


def decode_program(found: ProgramForm, data: bytes) -> Any:
    """Return the ``jax.stages.Compiled`` or ``Lowered``, without tracing, lowering or compiling.

    Raises PluginError for a program of another release of JAX or another kind of device, and for one that calls a
    function that is not registered here.
    """
    devices = devices_of(found.toolchain.platform)
    client = next(iter(devices.values())).client
    missing = [each for each in found.toolchain.devices if each not in devices]
    if missing:
        raise UnusableHere(f"a stored program runs on device {missing[0]}, which is not here ({len(devices)} are)")
    device_list = xla_client.DeviceList(tuple(devices[each] for each in found.toolchain.devices))
    check_toolchain(found.toolchain, _toolchain(client, device_list))
    in_tree, out_tree = structure_of(found.in_tree), structure_of(found.out_tree)
    avals = tuple(map(aval_of, found.arguments))
    if in_tree.num_leaves != len(avals) or out_tree.num_leaves != len(found.results):
        raise PluginError("a stored program of JAX is malformed: its trees do not fit its types")
    info = pxla.AllArgsInfo(avals, core.DebugInfo("jit", found.name, found.argument_names, None))
    donated = set(found.donated)
    infos = in_tree.unflatten([stages.ArgInfo(aval, index in donated) for index, aval in enumerate(avals)])
    common: dict[str, Any] = {
        "backend": client,
        "committed": found.committed,
        "unordered_effects": [],
        "ordered_effects": [],
        "keepalive": [],
        "host_callbacks": [],
        "kept_var_idx": set(found.kept),
        "mut": None,
        "all_args_info": info,
        "pgle_profiler": None,
    }
    used_avals = [avals[index] for index in found.kept]
    results = [aval_of(form) for form in found.results]
    shardings = [[sharding_of(form, devices) for form in forms] for forms in (found.in_shardings, found.out_shardings)]
    layouts = [[layout_of(form) for form in forms] for forms in (found.in_layouts, found.out_layouts)]
    _initialize(client.platform, data)
    _check_registered(client, found.targets)
    try:
        if found.kind == "lowered":
            lowering = internals.make_lowering(
                name=found.name,
                hlo=_module(data),
                constants=[],
                donated_invars=[index in donated for index in found.kept],
                platforms=(client.platform,),
                compiler_options_kvs=found.options,
                device_list=device_list,
                **common,
                global_in_avals=used_avals,
                global_out_avals=results,
                in_shardings=tuple(shardings[0]),
                out_shardings=tuple(shardings[1]),
                in_layouts=tuple(layouts[0]),
                out_layouts=tuple(layouts[1]),
                tuple_args=False,
                num_devices=len(device_list),
                shape_poly_state=None,
                intermediate_shardings=[sharding_of(form, devices) for form in found.inside],
                context_mesh=internals.empty_mesh,
            )
            return stages.Lowered(lowering, infos, out_tree, no_kwargs=found.no_keywords)
        executable = internals.make_executable(
            xla_executable=internals.deserialize_executable(client, data, device_list),
            device_list=device_list,
            input_avals=used_avals,
            output_avals=results,
            input_shardings=shardings[0],
            output_shardings=shardings[1],
            xla_in_layouts=layouts[0],
            xla_out_layouts=layouts[1],
            dispatch_in_layouts=[layout_of(form) for form in found.dispatch_layouts],
            name=found.name,
            **common,
        )
    except (RuntimeError, ValueError, ir.MLIRError) as error:
        raise UnusableHere(f"a stored program of JAX can't be loaded: {str(error)[:300]}") from error
    compiled = internals.make_compiled(executable, infos, out_tree, no_kwargs=found.no_keywords)
    vars(compiled)[_BYTES_ATTRIBUTE] = join_program(found, data)
    return compiled


def _initialize(platform: str, data: bytes) -> None:
    """Initialise LAPACK or the GPU solver as JAX does when it lowers a call; otherwise the call is a null pointer."""
    if uses_lapack(data):
        internals.initialize_lapack()
    if platform != "cpu" and b"hybrid_" in data:
        internals.gpu_solver.initialize_hybrid_kernels()


def _module(data: bytes) -> Any:
    with mlir.make_ir_context() as context:
        context.load_all_available_dialects()
        return ir.Module.parse(data)
