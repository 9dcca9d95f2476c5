"""The modes of torch that are set for a process or a thread and that code of a stage works in, beside its switches.

``torch.compile`` does not go by them, or sets them by itself: they are in the keys of stages alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from cachec.errors import ProcessBoundProgram


class TorchMode(NamedTuple):
    """A mode. getter, setter: below ``torch``; the getter may be a plain value. Without a setter it can't be given to
    another process. default: what the getter gives, as text."""

    name: str
    getter: str
    default: str
    setter: str = ""


MODES = (
    TorchMode("anomaly", "is_anomaly_enabled", "False"),
    TorchMode("anomaly_check_nan", "is_anomaly_check_nan_enabled", "True"),
    TorchMode("autocast_cache", "is_autocast_cache_enabled", "True", "set_autocast_cache_enabled"),
    TorchMode("backward_threads", "_C._is_multithreading_enabled", "True", "_C._set_multithreading_enabled"),
    TorchMode("check_sparse", "_C._check_sparse_tensor_invariants", "False", "_C._set_check_sparse_tensor_invariants"),
    TorchMode("forward_gradients", "_C._is_fwd_grad_enabled", "True", "_C._set_fwd_grad_enabled"),
    TorchMode("forward_level", "autograd.forward_ad._current_level", "-1"),
    TorchMode("functions_of_classes", "_C._is_torch_function_enabled", "True"),
    TorchMode(
        "grad_layout",
        "_C._is_grad_layout_enforcement_enabled",
        "True",
        "_C._set_grad_layout_enforcement_enabled",
    ),
    TorchMode("load_byte_order", "serialization.get_default_load_endianness", "None"),
    TorchMode("load_mmap", "serialization.get_default_mmap_options", "2", "serialization.set_default_mmap_options"),
    TorchMode("lift_cpu_tensors", "_C._only_lift_cpu_tensors", "False", "_C._set_only_lift_cpu_tensors"),
    TorchMode(
        "overwrite_parameters",
        "__future__.get_overwrite_module_params_on_conversion",
        "False",
        "__future__.set_overwrite_module_params_on_conversion",
    ),
    TorchMode("parametrizations_cached", "nn.utils.parametrize._cache_enabled", "0"),
    TorchMode("save_checksum", "serialization.get_crc32_options", "True", "serialization.set_crc32_options"),
    TorchMode("saved_tensors_hooks", "_C._autograd._saved_tensors_hooks_is_enabled", "True"),
    TorchMode(
        "swap_parameters",
        "__future__.get_swap_module_params_on_conversion",
        "False",
        "__future__.set_swap_module_params_on_conversion",
    ),
    TorchMode("jit_llga", "_C._jit_llga_enabled", "False", "_C._jit_set_llga_enabled"),
    TorchMode("jit_texpr_fuser", "_C._jit_texpr_fuser_enabled", "True", "_C._jit_set_texpr_fuser_enabled"),
    TorchMode("view_replay", "_C._is_view_replay_enabled", "False", "_C._set_view_replay_enabled"),
)


def describe_modes(torch: Any) -> dict[str, str]:
    """The modes that are not at their defaults. Raises ProcessBoundProgram for one that only its own code describes."""
    refusal = next(_undescribed(torch), "")
    if refusal:
        raise ProcessBoundProgram(f"the stage is called inside of {refusal}; call it outside")
    found = {mode.name: str(value) for mode, value in _values(torch) if str(value) != mode.default}
    found |= {f"printing/{name}": str(value) for name, value in printing(torch).items()}
    einsum = torch.backends.opt_einsum
    if einsum.is_available() and (einsum.enabled, einsum.strategy) != (True, "auto"):
        found["opt_einsum"] = f"{einsum.enabled}, {einsum.strategy}"
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    stance = None if eval_frame is None else eval_frame._stance
    if stance is not None and stance != type(stance)():
        found["stance"] = f"{stance.stance}, {stance.skip_guard_eval_unsafe}, {_backend_name(stance.backend)}"
    backends = sys.modules.get("torch._dynamo.backends.registry")
    backend = getattr(backends, "_default_backend", "inductor")
    if backend != "inductor":
        found["default_backend"] = _backend_name(backend)
    return found


def printing(torch: Any) -> dict[str, Any]:
    """The options by which tensors are printed, where one is not at its default."""
    options = torch._tensor_str.PRINT_OPTS
    return {} if options == type(options)() else dict(vars(options))


def read(torch: Any) -> dict[str, Any]:
    """The modes that another process can be given."""
    found = {mode.name: value for mode, value in _values(torch) if mode.setter and str(value) != mode.default}
    shown = printing(torch)
    return found | ({"printing": shown} if shown else {})


def write(torch: Any, values: Mapping[str, Any]) -> None:
    """Bring this process and thread to what ``read`` returned elsewhere."""
    for mode, now in _values(torch):
        wanted = values.get(mode.name, mode.default == "True" if isinstance(now, bool) else now)
        if mode.setter and now != wanted:
            attrgetter(mode.setter)(torch)(wanted)
    shown = values.get("printing", {})
    if printing(torch) != shown:
        torch.set_printoptions(**(shown or vars(type(torch._tensor_str.PRINT_OPTS)())))


def _values(torch: Any) -> Iterator[tuple[TorchMode, Any]]:
    """The modes that this release has, and what they are."""
    for mode in MODES:
        try:
            found = attrgetter(mode.getter)(torch)
        except AttributeError:
            continue
        yield mode, found() if callable(found) else found


def _undescribed(torch: Any) -> Iterator[str]:
    """Modes whose code or state changes what torch does, in words."""
    contexts = sys.modules.get("torch.utils._device")
    for mode in torch.overrides._get_current_function_mode_stack():
        if contexts is None or type(mode) is not contexts.DeviceContext:
            yield f"the mode {type(mode).__qualname__}"
    if torch._C._len_torch_dispatch_stack():
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        yield f"the mode {type(_get_current_dispatch_mode_stack()[-1]).__qualname__}"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        yield "hooks of saved tensors"
    if torch._C._functorch.maybe_current_level() is not None:
        yield "a transformation of torch.func, such as vmap or grad"


def _backend_name(backend: str | Callable[..., Any] | None) -> str:
    """Raises ProcessBoundProgram for code, which its name does not describe."""
    if callable(backend):
        raise ProcessBoundProgram(
            "the backend of torch.compile is set to a function; name one, or pass backend= in the stage"
        )
    return str(backend)
