"""Every private name of JAX and jaxlib that this package uses, for all supported releases.

The first use of a name looks it up, so that an import of this module does not import JAX. If releases differ in how a
function is called, a function of this module calls it. It tests for the names themselves, not for release numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

from cachec.errors import UnsupportedVersion

if TYPE_CHECKING:
    import jax.experimental.layout
    import numpy as np
    from jax._src.interpreters.pxla import MeshExecutable, UnloadedMeshExecutable
    from jaxlib._jax import Client

_SRC = "jax._src."

#: Name -> its places in the releases, the newest first: a module, or ``module:attribute``.
_PLACES: Mapping[str, tuple[str, ...]] = {
    "CacheInterface": (f"{_SRC}compilation_cache_interface:CacheInterface",),
    "ClosedJaxpr": (f"{_SRC}core:ClosedJaxpr",),  # JAX 0.12 has none, so cachec_jax.jit is jax.jit there
    # Until 0.6 ``Layout`` is a pair with a sharding, and this the first of it.
    "Layout": (f"{_SRC}layout:DeviceLocalLayout", f"{_SRC}layout:Layout"),
    "abstract_mesh_context": (
        f"{_SRC}mesh:abstract_mesh_context_manager",
        f"{_SRC}config:abstract_mesh_context_manager",
    ),
    "array": (f"{_SRC}array",),
    "cache_key": (f"{_SRC}cache_key",),
    "compilation_cache": (f"{_SRC}compilation_cache",),
    "config": (f"{_SRC}config",),
    "core": (f"{_SRC}core",),
    "debugging": (f"{_SRC}debugging",),
    "device_context": (f"{_SRC}mesh:device_context", f"{_SRC}config:device_context"),
    "empty_mesh": (f"{_SRC}mesh:EMPTY_ENV.physical_mesh",),
    "enable_x64": ("jax:enable_x64", "jax.experimental:enable_x64"),
    "gpu_solver": (f"{_SRC}lax.linalg:gpu_solver",),
    "hlo_options": tuple(f"jaxlib.{each}:HloPrintOptions" for each in ("_hlo", "_jax", "xla_extension")),
    "initialize_lapack": (f"{_SRC}lax.linalg:initialize_lapack", f"{_SRC}lax.linalg:lapack._lapack.initialize"),
    "ir": (f"{_SRC}lib.mlir:ir",),
    "jaxlib_extension": ("jaxlib._jax", "jaxlib.xla_extension"),
    "jit_p": (f"{_SRC}pjit:jit_p", f"{_SRC}pjit:pjit_p"),
    "lax": (f"{_SRC}lax.lax",),
    "mesh": (f"{_SRC}mesh",),
    "mlir": (f"{_SRC}interpreters.mlir",),
    "pjit": (f"{_SRC}pjit",),
    "prng": (f"{_SRC}random.prng", f"{_SRC}prng"),
    "pxla": (f"{_SRC}interpreters.pxla",),
    "set_mesh": ("jax:set_mesh", "jax.sharding:set_mesh"),
    "sharding": (f"{_SRC}sharding",),
    "sharding_impls": (f"{_SRC}sharding_impls",),
    "stages": (f"{_SRC}stages",),
    "tree_util": (f"{_SRC}tree_util",),
    "xla_client": (f"{_SRC}lib:xla_client",),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Raises UnsupportedVersion for a name that the installed release does not have."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for place in _PLACES[name]:
        module, _, attribute = place.partition(":")
        try:
            found = import_module(module)
            return attrgetter(attribute)(found) if attribute else found
        except (ImportError, AttributeError) as error:
            why = error
    raise UnsupportedVersion(f"cachec_jax needs {_PLACES[name][0]} of JAX, found {type(why).__name__}: {why}")


class _LoweringRecord(dict[str, Any]):
    """JAX's record under names. A name that the installed release does not record raises UnsupportedVersion."""

    def __missing__(self, name: str) -> Any:
        raise UnsupportedVersion(f"cachec_jax needs {name!r} of what JAX records of a Lowered, found {sorted(self)}")


def lowering_record(lowering: Any) -> Mapping[str, Any]:
    """Return JAX's record of a ``MeshComputation`` for its compiler. A missing name raises UnsupportedVersion."""
    return _LoweringRecord(lowering.compile_args)


#: Arguments that only older releases need to make a program, with the values for one program without automatic
#: placement.
_FORMER: Mapping[str, Any] = {"spmd_lowering": True, "auto_spmd_lowering": False, "pmap_nreps": 1}


def devices_of_executable(executable: UnloadedMeshExecutable) -> Any:
    """The devices of an ``UnloadedMeshExecutable``."""
    return executable.device_list if hasattr(executable, "device_list") else executable.device_assignment


def devices_of_lowering(lowering: Any) -> Any:
    """The devices of a ``MeshComputation``; None if it is for no device of this process."""
    if hasattr(lowering, "_device_list"):
        return lowering._device_list
    return lowering.compile_args.get("device_assignment")


def is_former_kind(known: Callable[[str, Any], Any]) -> bool:
    """Whether only older releases make such a program: placed by XLA alone, or copied for ``pmap``.

    known: returns a program's attribute by its name, or the given default.
    """
    return any(known(name, value) != value for name, value in _FORMER.items())


def make_lowering(*, constants: list[Any], device_list: Any, **values: Any) -> Any:
    """A ``MeshComputation``. values: what all releases take by these names."""
    asked = {*signature(__getattr__("pxla").MeshComputation).parameters}
    asked |= {*signature(__getattr__("pxla").UnloadedMeshExecutable.from_hlo).parameters}
    more = {"const_args": constants, **_FORMER}
    known = {name: value for name, value in more.items() if name in asked}
    return __getattr__("pxla").MeshComputation(**values, **known, device_assignment=device_list)


def make_executable(*, device_list: Any, **values: Any) -> Any:
    """A ``MeshExecutable``. values: what all releases take by these names."""
    made = __getattr__("pxla").UnloadedMeshExecutable
    asked = signature(made).parameters
    devices = "device_list" if "device_list" in asked else "device_assignment"
    former = {name: value for name, value in _FORMER.items() if name in asked}
    return made(**values, **former, **{devices: device_list}).load()


def make_compiled(executable: MeshExecutable, infos: Any, out_tree: Any, *, no_kwargs: bool) -> Any:
    """A ``jax.stages.Compiled`` without constants."""
    made = __getattr__("stages").Compiled
    constants: dict[str, Any] = {"const_args": []} if "const_args" in signature(made).parameters else {}
    return made(executable=executable, args_info=infos, out_tree=out_tree, no_kwargs=no_kwargs, **constants)


def deserialize_executable(client: Client, data: bytes, devices: Any) -> Any:
    """Load the bytes that XLA serialised. A release without the argument for devices uses those in ``data``."""
    try:
        return client.deserialize_executable(data, executable_devices=devices)
    except TypeError:
        return client.deserialize_executable(data, None)


def make_structure(data: tuple[Any, Any], children: list[Any]) -> Any:
    """Make a ``PyTreeDef`` of ``node_data()`` and the children's structures. Raises UnsupportedVersion."""
    import jax

    make = _maker_of_structures()
    if make is not None:
        return make(jax.tree_util.default_registry, data, children)
    check_structure(*data)
    kind, keys = data
    values = [child.unflatten([0] * child.num_leaves) for child in children]
    if hasattr(kind, "_fields"):
        return jax.tree.structure(kind(*values))
    return jax.tree.structure(dict(zip(keys, values, strict=True)) if kind is dict else kind(values))


def check_structure(kind: type, data: Any) -> None:
    """Raise UnsupportedVersion for a node that can't be made again: in JAX 0.6.1 to 0.7.2 a node of a class."""
    if _maker_of_structures() is None and kind not in {dict, list, tuple} and not hasattr(kind, "_fields"):
        raise UnsupportedVersion(f"this release of JAX can't make a {kind.__qualname__} with {data!r} in a tree again")


def _maker_of_structures() -> Any:
    import jax

    kind = jax.tree_util.PyTreeDef
    former = getattr(kind, "make_from_node_data_and_children", None)
    return getattr(kind, "from_node_data_and_children", former)


def abstract_device(mesh: Any) -> tuple[str, int | None, str] | None:
    """Kind, cores and platform of the devices of an ``AbstractMesh``; older releases do not have all three."""
    device = getattr(mesh, "abstract_device", None)
    if device is None:
        return None
    cores = device.num_cores if hasattr(device, "num_cores") else device.num_tpu_cores
    return device.device_kind, cores, getattr(device, "platform", "")


def make_abstract_mesh(sizes: Any, names: Any, types: Any, device: tuple[Any, ...] | None) -> Any:
    """Make an ``AbstractMesh``. device: kind, cores and platform. Raises ValueError if a release can't store them."""
    mesh = __getattr__("mesh")
    if hasattr(mesh, "AbstractDevice"):
        parts = [] if device is None else device[: len(signature(mesh.AbstractDevice).parameters)]
        made = mesh.AbstractDevice(*parts) if parts else None
        return mesh.AbstractMesh(sizes, names, axis_types=types, abstract_device=made)
    if device is not None:
        raise ValueError("meshes of this release of JAX do not have the kind of their devices")
    return mesh.AbstractMesh(sizes, names, axis_types=types)


def layout_parts(layout: jax.experimental.layout.Layout) -> tuple[Any, Any, int]:
    """Order, tiling and bits of an element, as ``Layout`` takes them."""
    tiling = layout.tiling if hasattr(layout, "tiling") else layout._tiling
    bits = "sub_byte_element_size_in_bits"
    return layout.major_to_minor, tiling, getattr(layout, bits if hasattr(layout, bits) else f"_{bits}")


def symbolic_constraints(dimension: Any) -> str:
    """Return the constraints on a symbolic dimension of ``jax.export``, which its own text omits."""
    return "; ".join(each.debug_str for each in dimension.scope._explicit_constraints)


def changing_values(variable: Any) -> bool:
    """Whether the value of a variable of a jaxpr changes as the program runs; never in older releases."""
    return any(getattr(variable, name, None) is not None for name in ("initial_qdd", "final_qdd"))


def is_high(part: object) -> bool:
    """Whether a jaxpr or a type is of the kind that JAX first lowers to another one; never in older releases."""
    return bool(getattr(part, "is_high", False))


def equation_context(context: Any) -> Any:
    """An equation's context, where equal ones are one object. Other releases make one each: a dict of what it says."""
    kind: Any = type(context)
    if hasattr(kind, "_create") or kind.__eq__ is not object.__eq__:
        return context
    return {name: getattr(context, name) for name in kind.__slots__}


def host_array(value: Any) -> Any:
    """Return the NumPy array in a wrapper of JAX 0.7.2 to 0.9, and any other value as it is."""
    wrapped = type(value).__module__ == f"{_SRC}literals" and hasattr(value, "val")
    return value.val if wrapped else value


class TypedLiteral(Protocol):
    """A number with a dtype in a jaxpr."""

    dtype: np.dtype[Any]


def typed_literals() -> tuple[type[TypedLiteral], ...]:
    """Return the classes of JAX for numbers with a dtype; older releases have none."""
    try:
        literals = import_module(f"{_SRC}literals")
    except ImportError:
        return ()
    prefix = "Typed" if hasattr(literals, "TypedInt") else "Literal"
    return tuple(getattr(literals, prefix + each) for each in ("Int", "Float", "Complex"))


def trace_jit(function: Any, info: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """Trace a call as ``jax.jit`` does: the traced program, and the flat arguments. info: the processed options."""
    pjit = __getattr__("pjit")
    trace = getattr(pjit, "_infer_params", None) or pjit._trace_for_jit
    traced, given = trace(function, info, args, kwargs)
    return traced, given


def run_jit(
    traced: Any, given: list[Any], function: Any, info: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Run a result of ``trace_jit``: results, flat results, their tree, arguments, jaxpr, executable, profiler."""
    pjit = __getattr__("pjit")
    if hasattr(pjit, "_run_python_pjit"):
        more = (info,) if "jit_info" in signature(pjit._run_python_pjit).parameters else ()
        results = pjit._run_python_pjit(traced, given, function, *more, args, kwargs)
        return tuple(results[:7])
    # Older releases trace and run in one function. It gets a trace function that returns the existing trace.
    whole = pjit._python_pjit_helper
    names = {**vars(pjit), "_infer_params": lambda *_: (traced, given)}
    results = FunctionType(whole.__code__, names, whole.__name__, whole.__defaults__, whole.__closure__)(
        function, info, *args, **kwargs
    )
    return tuple(results[:7]) if _takes_constants() else (*results[:5], *results[-2:])


def fast_path(executable: MeshExecutable, results: tuple[Any, ...], given: list[Any], constants: list[Any]) -> Any:
    """Return the data with which JAX dispatches the next such call without Python; None if it can't."""
    if constants and not _takes_constants():
        return None
    _, flat, out_tree, _, jaxpr, _, profiler = results
    values = {
        "executable": executable,
        "out_tree": out_tree,
        "args_flat": given,
        "out_flat": flat,
        "effects": jaxpr.effects,
        "consts": jaxpr.consts,
        "consts_for_constvars": jaxpr.consts,
        "pgle_profiler": profiler,
        "const_args": constants,
        "attrs_tracked": [],
        "box_data": [],
        "abstracted_axes": None,
    }
    make = __getattr__("pjit")._get_fastpath_data
    return make(**{name: values[name] for name in signature(make).parameters})


def place_constants(executable: MeshExecutable, arrays: list[Any]) -> Any:
    """Place the arrays on the executable's devices; older releases place them at each call."""
    return executable.shard_const_args(arrays) if hasattr(executable, "shard_const_args") else arrays


def has_side_states(traced: Any) -> bool:
    """Whether a traced function reads or writes attributes of objects, which older releases pass as arguments."""
    return any(getattr(traced, name, None) for name in ("attrs_tracked", "box_data"))


def _takes_constants() -> bool:
    return "const_args" in signature(__getattr__("pjit")._get_fastpath_data).parameters
