"""Transfer of JAX's current settings to another process: options, contexts of this thread, meshes."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from cachec_jax import internals
from cachec_jax.key_settings import IRRELEVANT, defaults_of_release

#: Options that are transferred because they change how long a run takes; they change no result.
_TRANSFERRED: Mapping[str, None] = {"jax_compilation_cache_dir": None}


class _DeviceName(NamedTuple):
    platform: str
    number: int


class _MeshParts(NamedTuple):
    devices: tuple[_DeviceName, ...]
    shape: tuple[int, ...]
    names: tuple[Any, ...]
    #: The names of the axes' types; None if the mesh has no types.
    axis_types: tuple[str, ...] | None


def read() -> dict[str, Any]:
    """Return the settings that are not at their defaults; empty if JAX is not imported."""
    if not hasattr(sys.modules.get("jax"), "jit"):  # not imported, or still being imported
        return {}
    config: Any = sys.modules["jax._src.config"]
    known = _default_options()
    options, local = {}, {}
    for name, holder in config.config._value_holders.items():
        if name in IRRELEVANT and name not in _TRANSFERRED:
            continue
        has_context = hasattr(holder, "get_global")
        value = _plain(holder.get_global() if has_context else holder.value)
        if name not in known or value != known[name]:
            options[name] = value
        if has_context and (value := holder.get_local()) is not config.config_ext.unset:
            local[name] = _plain(value)
    found: dict[str, Any] = {"options": options, "local": local}
    mesh = internals.device_context.value
    found["mesh"] = _mesh_parts(mesh) if getattr(mesh, "devices", None) is not None and not mesh.empty else None
    found["meshes"] = [_mesh_parts(each) for each in config.mesh_context_manager.value]
    return {name: part for name, part in found.items() if part}


def write(values: Mapping[str, Any]) -> None:
    """Set this process and thread to the settings that ``read`` returned elsewhere. Errors of JAX pass through."""
    if not values and "jax" not in sys.modules:
        return
    import jax  # noqa: F401 - what is changed here

    config: Any = sys.modules["jax._src.config"]
    holders = config.config._value_holders
    # An option that a variable sets is right already: this process has the caller's variables.
    unset = {
        name: value for name, value in _default_options().items() if name in holders and name.upper() not in os.environ
    }
    wanted = {**unset, **values.get("options", {})}
    # Other options decide which devices exist, so they are set first.
    for name, value in sorted(wanted.items(), key=lambda item: isinstance(item[1], _DeviceName)):
        holder = holders[name]
        now = holder.get_global() if hasattr(holder, "get_global") else holder.value
        if _plain(now) != value:
            config.config.update(name, _live(value))
    local = values.get("local", {})
    for name, holder in holders.items():
        if name in local or (hasattr(holder, "get_local") and holder.get_local() is not config.config_ext.unset):
            _set_local(holder, local.get(name, config.config_ext.unset), config.config_ext.unset)
    for context in (internals.abstract_mesh_context, internals.device_context):
        context.set_local(config.config_ext.unset)
    if values.get("mesh"):
        internals.set_mesh(_mesh(values["mesh"]))
    stack = sys.modules["jax._src.mesh"].thread_resources.stack
    with warnings.catch_warnings(action="ignore"):
        while len(stack) > 1:
            stack[-1].physical_mesh.__exit__(None, None, None)
        for parts in values.get("meshes", ()):
            _mesh(parts).__enter__()


def _default_options() -> Mapping[str, object]:
    """Return the options to transfer, with their defaults in the imported release."""
    return {**defaults_of_release(sys.modules["jax"].__version__), **_TRANSFERRED}


def _set_local(holder: Any, value: Any, unset: object) -> None:
    live = _live(value)
    parser = getattr(holder, "_parser", None)  # older releases have none
    if live is not unset and parser is not None:
        live = parser(live)
    holder.set_local(live)
    if holder._update_thread_local_hook is not None:
        holder._update_thread_local_hook(None if live is unset else live)


def _plain(value: Any) -> Any:
    """Return a device as its name, a member of an enumeration as JAX's variables spell it, and others as they are."""
    if hasattr(value, "platform") and hasattr(value, "id"):
        return _DeviceName(value.platform, value.id)
    name = getattr(value, "name", None)
    return name.lower() if isinstance(name, str) and isinstance(value, int | str) else value


def _live(value: Any) -> Any:
    if not isinstance(value, _DeviceName):
        return value
    import jax

    for device in jax.devices(value.platform):
        if device.id == value.number:
            return device
    raise ValueError(f"JAX has no device {value.number} of platform {value.platform!r} here")


def _mesh_parts(mesh: Any) -> _MeshParts:
    types = getattr(mesh, "axis_types", None)
    devices = tuple(_plain(each) for each in mesh.devices.flat)
    names = None if types is None else tuple(each.name for each in types)
    return _MeshParts(devices, mesh.devices.shape, tuple(mesh.axis_names), names)


def _mesh(parts: _MeshParts) -> Any:
    import jax
    import numpy as np

    devices = np.empty(len(parts.devices), dtype=object)
    devices[:] = [_live(each) for each in parts.devices]
    types = parts.axis_types and tuple(getattr(jax.sharding.AxisType, each) for each in parts.axis_types)
    return jax.sharding.Mesh(devices.reshape(parts.shape), parts.names, axis_types=types)
