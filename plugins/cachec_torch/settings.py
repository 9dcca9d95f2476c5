"""The live settings of torch as values that another process can be given.

Not sent: hooks of all modules, and modes that a user has written. ``ambient`` shows them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from cachec_torch import modes
from cachec_torch.ambient import (
    MIXED,
    OPTIONS,
    Switch,
    default_device,
    is_flushing,
    is_imported,
    overridden,
    switches,
    threads_at_import,
)

#: Setters, below ``torch``, that are not called like their getters.
_SETTERS = {
    "default_dtype": "set_default_dtype",
    "float32_matmul_precision": "set_float32_matmul_precision",
    "grad": "set_grad_enabled",
    "mha_fastpath": "backends.mha.set_fastpath_enabled",
    **{
        f"sdp_{name}": f"_C._set_sdp_use_{name}" for name in ("cudnn", "flash", "math", "mem_efficient", "overrideable")
    },
}
_GETTER, _SETTER = "_C._get_", "_C._set_"
_PRECISION = "fp32_precision/"

#: Devices that have an autocast of their own.
_KINDS = ("cpu", "cuda")

#: What ``write`` has entered in this process: it ends when the guard does.
_guards: list[Any] = []


def read() -> dict[str, Any]:
    """The settings that are not at their defaults; empty where torch is not imported."""
    torch: Any = sys.modules.get("torch")
    if not is_imported(torch):
        return {}
    changed = {}
    for switch in switches():
        value = switch.value(torch)
        is_sent = value != MIXED and not switch.name.endswith(("_modes", "autocast"))
        if is_sent and not switch.is_default(str(value)):
            changed[switch.name] = value
    enabled = {kind: torch.get_autocast_dtype(kind) for kind in _KINDS if torch.is_autocast_enabled(kind)}
    options = {}
    for module in OPTIONS:
        config = sys.modules.get(module)
        if config is not None and hasattr(config, "_config"):
            options[module] = dict(overridden(config._config, OPTIONS[module]))
    threads = torch.get_num_threads()
    found = {
        "switches": changed,
        "modes": modes.read(torch),
        "anomaly": torch.is_anomaly_enabled() and [torch.is_anomaly_check_nan_enabled()],
        "autocast": enabled,
        "options": {module: values for module, values in options.items() if values},
        "threads": threads if threads != threads_at_import() else None,
        "flush_denormal": is_flushing(),
    }
    return {name: value for name, value in found.items() if value}


def write(values: Mapping[str, Any]) -> None:
    """Bring this process and thread to what ``read`` returned elsewhere. Raises what torch raises."""
    if not values and "torch" not in sys.modules:
        return
    import torch

    wanted = dict(values.get("switches", {}))
    _write_inference_mode(torch, is_on="inference_mode" in wanted)
    _write_determinism(torch, wanted)
    device = wanted.pop("default_device", None)
    if device is not None or str(default_device(torch)) != "cpu":
        torch.set_default_device(device)
    for switch in switches():
        _write_switch(torch, switch, wanted)
    modes.write(torch, values.get("modes", {}))
    torch.set_anomaly_enabled("anomaly" in values, *values.get("anomaly", ()))
    for kind in _KINDS:
        dtype = values.get("autocast", {}).get(kind)
        if torch.is_autocast_enabled(kind) != (dtype is not None):
            torch.set_autocast_enabled(kind, dtype is not None)
        if dtype is not None:
            torch.set_autocast_dtype(kind, dtype)
    for module, options in values.get("options", {}).items():
        for name, value in options.items():
            setattr(importlib.import_module(module), name, value)
    threads = values.get("threads", threads_at_import())
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if is_flushing() != bool(values.get("flush_denormal")):
        torch.set_flush_denormal(bool(values.get("flush_denormal")))


def _write_switch(torch: Any, switch: Switch, wanted: Mapping[str, Any]) -> None:
    setter = _SETTERS.get(switch.name, switch.getter.replace(_GETTER, _SETTER))
    if switch.name.startswith(_PRECISION):
        setter = "_C._set_fp32_precision_setter"
    if setter == switch.getter:
        return  # written above
    now = switch.value(torch)
    if switch.name in wanted:
        value = wanted[switch.name]
    elif switch.is_default(str(now)):
        return
    else:  # this process has changed it
        value = torch.float32 if switch.name == "default_dtype" else _parse_default(switch.default, now)
    if now != value:
        attrgetter(setter)(torch)(*switch.arguments, value)


def _parse_default(default: str, now: Any) -> Any:
    """A default, of which only the text is known; ``now`` where that is no text and no truth value."""
    return default == "True" if isinstance(now, bool) else default if isinstance(now, str) else now


def _write_inference_mode(torch: Any, *, is_on: bool) -> None:
    if is_on == torch.is_inference_mode_enabled():
        return
    guard = torch.inference_mode(is_on)
    guard.__enter__()
    _guards.append(guard)


def _write_determinism(torch: Any, switched: Mapping[str, Any]) -> None:
    wanted = (bool(switched.get("deterministic")), bool(switched.get("deterministic_warn_only")))
    if wanted != (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()):
        torch.use_deterministic_algorithms(wanted[0], warn_only=wanted[1])


# --- random numbers


def watch_generators() -> Callable[[], Sequence[str]]:
    """The result tells which generators of CUDA's devices have drawn since their seed was set."""

    def drawn() -> Sequence[str]:
        torch: Any = sys.modules.get("torch")
        if not is_imported(torch) or not torch.cuda.is_initialized():
            return ()
        found = []
        for number, generator in enumerate(torch.cuda.default_generators):
            fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
            if not torch.equal(generator.get_state(), fresh.get_state()):
                found.append(f"torch.cuda:{number}")
        return found

    return drawn
