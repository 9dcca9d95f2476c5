"""JAX's array types, shardings and layouts as JSON, and back. Devices are stored by their ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import ml_dtypes
import msgspec
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from cachec.base.hashing import Hasher
from cachec.errors import PluginError, UnstorableValue, UnusableHere, clip
from cachec.programs.plugin import Fingerprint
from cachec_jax import internals
from cachec_jax.internals import Layout, core, prng, sharding_impls, xla_client
from cachec_jax.program_format import AvalForm, AxisForm, LayoutForm, ShardingForm

_MOST_CHARACTERS = 60


def aval_form(aval: Any) -> AvalForm:
    """Raises PluginError for a type of another value than an array, and for one that the form can't express."""
    if type(aval) is not core.ShapedArray:
        raise UnstorableValue(f"a {type(aval).__name__} can't be stored; pass and return arrays")
    dtype = f"key<{aval.dtype._impl.name}>" if isinstance(aval.dtype, prng.KeyTy) else str(aval.dtype)
    form, mesh = AvalForm(dtype, tuple(aval.shape), aval.weak_type), aval.sharding.mesh
    if not mesh.empty:
        form = msgspec.structs.replace(
            form,
            axes=_axes(mesh),
            spec=tuple(aval.sharding.spec),
            device=internals.abstract_device(mesh),
        )
    if aval != aval_of(form):
        raise UnstorableValue(f"the type {aval} can't be stored: it says more than shape and dtype")
    return form


def aval_of(form: AvalForm) -> Any:
    """Raises PluginError for an unknown dtype, and for an invalid placement."""
    if not form.axes:
        return core.ShapedArray(form.shape, _dtype(form.dtype), weak_type=form.weak)
    names, sizes, types = zip(*form.axes, strict=True)
    try:
        mesh = internals.make_abstract_mesh(sizes, names, tuple(AxisType[each] for each in types), form.device)
        sharding = NamedSharding(mesh, PartitionSpec(*form.spec))
        return core.ShapedArray(form.shape, _dtype(form.dtype), weak_type=form.weak, sharding=sharding)
    except (ValueError, TypeError, KeyError) as error:
        raise PluginError(f"a stored type of array can't be made: {error}") from error


def _axes(mesh: Any) -> tuple[AxisForm, ...]:
    if not all(isinstance(name, str) for name in mesh.axis_names):
        raise UnstorableValue(f"the axes {mesh.axis_names} of a mesh can't be stored: expected text for names")
    types = [each.name for each in mesh.axis_types]
    return tuple(zip(mesh.axis_names, mesh.axis_sizes, types, strict=True))


def _dtype(name: str) -> Any:
    if name.startswith("key<"):
        implementation = prng.prngs.get(name[len("key<") : -1])
        if implementation is None:
            raise UnusableHere(f"a stored program takes random keys of an unknown kind, {name[:80]!r}")
        return prng.KeyTy(implementation)
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError as error:
        raise PluginError(f"a stored program has the unknown dtype {name[:80]!r}") from error


def sharding_form(sharding: jax.sharding.Sharding) -> ShardingForm:
    """Raises PluginError for an unknown kind of sharding."""
    if isinstance(sharding, sharding_impls.UnspecifiedValue):
        return ShardingForm("unspecified")
    devices = tuple(device.id for device in getattr(sharding, "_device_assignment", ()))
    memory = sharding.memory_kind
    if type(sharding) is SingleDeviceSharding:
        return ShardingForm("single", devices, memory)
    if type(sharding) is sharding_impls.GSPMDSharding:
        text = sharding._hlo_sharding.to_proto().SerializeToString()
        return ShardingForm("gspmd", devices, memory, text=text.hex())
    if type(sharding) is NamedSharding and isinstance(sharding.mesh, Mesh):
        mesh = sharding.mesh
        form = ShardingForm("named", devices, memory, _axes(mesh), tuple(sharding.spec))
        if sharding_of(form, {device.id: device for device in mesh.devices.flat}) == sharding:
            return form
    raise UnstorableValue(f"an array's placement {sharding} can't be stored; use a NamedSharding, or one device")


def sharding_of(form: ShardingForm, devices: Mapping[int, Any]) -> Any:
    """devices: of this process, by id. Raises PluginError for a missing device, and for an invalid placement."""
    missing = [each for each in form.devices if each not in devices]
    if missing:
        raise UnusableHere(f"a stored program runs on device {missing[0]}, which is not here ({len(devices)} are)")
    here = [devices[each] for each in form.devices]
    make = _SHARDINGS.get(form.kind)
    try:
        if make is None:
            raise ValueError(f"the unknown kind {form.kind[:80]!r}")
        return make(form, here)
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
        raise PluginError(f"a stored placement can't be made: {error}") from error


def _make_named(form: ShardingForm, here: list[Any]) -> Any:
    sizes = [size for _, size, _ in form.axes]
    types = tuple(AxisType[each] for _, _, each in form.axes)
    mesh = Mesh(np.array(here).reshape(sizes), [name for name, _, _ in form.axes], axis_types=types)
    return NamedSharding(mesh, PartitionSpec(*form.spec), memory_kind=form.memory)


def _make_gspmd(form: ShardingForm, here: list[Any]) -> Any:
    proto = xla_client.OpSharding()
    proto.ParseFromString(bytes.fromhex(form.text))
    return sharding_impls.GSPMDSharding(here, proto, memory_kind=form.memory)


_SHARDINGS: Mapping[str, Callable[[ShardingForm, list[Any]], Any]] = {
    "unspecified": lambda form, here: sharding_impls.UNSPECIFIED,
    "single": lambda form, here: SingleDeviceSharding(here[0], memory_kind=form.memory),
    "named": _make_named,
    "gspmd": _make_gspmd,
}


def fingerprint(value: Any) -> Fingerprint:
    """Hash a device, a mesh or a placement. Raises UnstorableValue for a placement without a stored form."""
    if isinstance(value, Mesh):
        described: tuple[object, ...] = (_axes(value), [_device_form(device) for device in value.devices.flat])
    elif isinstance(value, AbstractMesh):
        described = (_axes(value), internals.abstract_device(value))
    elif isinstance(value, (NamedSharding, SingleDeviceSharding)):
        described = (sharding_form(value), [_device_form(device) for device in value._device_assignment])
    else:
        described = _device_form(value)
    hasher = Hasher("jax")
    try:
        hasher.part(type(value).__name__, msgspec.json.encode(described))
    except TypeError as error:  # an axis of a PartitionSpec that is not text
        raise UnstorableValue(f"{clip(str(value), _MOST_CHARACTERS)} has no stable form: {error}") from error
    return Fingerprint(hasher.digest(), clip(str(value), _MOST_CHARACTERS))


def _device_form(device: Any) -> tuple[int, str, str, int]:
    return device.id, device.device_kind, device.platform, device.process_index


def layout_form(layout: jax.experimental.layout.Layout | None) -> LayoutForm | None:
    """Raises PluginError for a layout that the compiler chooses."""
    if layout is None:
        return None
    if not isinstance(layout, Layout):
        raise UnstorableValue(f"the layout {layout} can't be stored")
    order, tiling, bits = internals.layout_parts(layout)
    return LayoutForm(tuple(order), None if tiling is None else tuple(map(tuple, tiling)), bits)


def layout_of(form: LayoutForm | None) -> Any:
    return None if form is None else Layout(form.order, form.tiling, form.bits)


def devices_of(platform: str) -> dict[int, Any]:
    """Return the devices of this process by id. Raises PluginError if JAX does not have the platform here."""
    try:
        return {device.id: device for device in jax.local_devices(backend=platform)}
    except RuntimeError as error:
        raise UnusableHere(
            f"a stored program is for {platform[:80]!r}, which JAX does not have here: {error}"
        ) from error
