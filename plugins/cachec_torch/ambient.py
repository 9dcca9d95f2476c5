"""The settings of torch that change what a stage gets from it, read live and without importing torch.

Three kinds: variables of the environment, which torch reads when it is imported; switches of the library (``LIVE``);
options of Dynamo, AOTAutograd and Inductor. Of an option counts what somebody has set in this process, where it differs
from its default: torch leaves options set to their defaults behind it, and takes defaults from variables, which count
themselves. Tests hold the tables against the installed torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from cachec_torch.modes import describe_modes

#: Variables that torch and its compilers read begin so.
PREFIXES = (
    *(
        "AOTINDUCTOR_",
        "AOTI_",
        "AOT_INDUCTOR_",
        "AOT_PARTITIONER_",
        "ATEN_",
        "CUBLAS",
        "CUDNN_",
        "CUTEDSL_",
        "CUTLASS_",
    ),
    *("DNNL_", "FX_", "GOMP_", "HALIDE_", "INDUCTOR_", "KMP_", "MKL_", "NVIDIA_TF32", "OMP_", "ONEDNN_", "OPENBLAS_"),
    *("PARTITIONER_", "PYTORCH_", "TORCH", "TRITON_", "UNSAFE_SKIP_"),
)

#: The same of other names.
VARIABLES = frozenset(
    {
        "CC",
        "CXX",
        "ENABLE_HOST_SIDE_TMA",
        "ENABLE_PERSISTENT_TMA_MATMUL",
        "ENABLE_TEMPLATE_AUTOWS",
        "ENABLE_TEMPLATE_TMA_STORE",
        "ENABLE_TMA_LOAD_FOR_TEMPLATE_EPILOGUE",
        "FAKE_ALLOW_META",
        "TENSORIFY_PYTHON_SCALARS",
    }
)

#: Variables that begin so and change only where things are kept, what is printed and logged, or who is waited for.
IRRELEVANT = (
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
    "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_COMPILE_THREADS",
    "TORCHINDUCTOR_FX_GRAPH_",
    "TORCHINDUCTOR_WORKER_",
    "TORCH_COMPILE_DEBUG",
    "TORCH_HOME",
    "TORCH_LOGS",
    "TORCH_SHOW_",
    "TORCH_TRACE",
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
)


#: The value of a switch that torch refuses to tell, as others say all of it.
MIXED = "mixed"


class Switch(NamedTuple):
    """A switch of the library. getter: its function, below ``torch``. default: what that returns, as text. earlier: the
    same in earlier releases."""

    name: str
    getter: str
    default: str
    arguments: tuple[Any, ...] = ()
    earlier: str | None = None

    def value(self, torch: Any) -> Any:
        """What it is now, in this thread."""
        if self.name == "default_device":
            return default_device(torch)
        try:
            return attrgetter(self.getter)(torch)(*self.arguments)
        except RuntimeError:  # the getter of earlier releases, after a precision was set that it has no name for
            return MIXED

    def is_default(self, value: str) -> bool:
        """Whether a value is the default, or the same in effect: a precision is ``ieee`` after it was set back."""
        return value in {self.default, self.earlier} or (value, self.default) == ("ieee", "none")


LIVE = (
    Switch("default_dtype", "get_default_dtype", "torch.float32"),
    Switch("default_device", "get_default_device", "cpu"),
    Switch("deterministic", "are_deterministic_algorithms_enabled", "False"),
    Switch("deterministic_fill", "_C._get_deterministic_fill_uninitialized_memory", "True"),
    Switch("deterministic_warn_only", "is_deterministic_algorithms_warn_only_enabled", "False"),
    Switch("float32_matmul_precision", "get_float32_matmul_precision", "highest"),
    Switch("grad", "is_grad_enabled", "True"),
    Switch("inference_mode", "is_inference_mode_enabled", "False"),
    Switch("autocast", "_C._is_any_autocast_enabled", "False"),
    Switch("function_modes", "_C._len_torch_function_stack", "0"),
    Switch("dispatch_modes", "_C._len_torch_dispatch_stack", "0"),
    Switch("blas_backend", "_C._get_blas_preferred_backend", "_BlasBackend.Cublas"),
    Switch("cpu_fp16_reduction", "_C._get_cpu_allow_fp16_reduced_precision_reduction", "False"),
    Switch(
        "cublas_bf16_reduction", "_C._get_cublas_allow_bf16_reduced_precision_reduction", "(True, True)", earlier="True"
    ),
    Switch("cublas_fp16_accumulation", "_C._get_cublas_allow_fp16_accumulation", "False"),
    Switch(
        "cublas_fp16_reduction",
        "_C._get_cublas_allow_fp16_reduced_precision_reduction",
        "(True, True)",
        earlier="True",
    ),
    Switch("cublaslt_grouped_gemm", "_C._get_cublaslt_prefer_grouped_gemm", "False"),
    Switch("cudnn_benchmark", "_C._get_cudnn_benchmark", "False"),
    Switch("cudnn_depthwise_kernel", "_C._get_cudnn_depthwise_kernel", "auto"),
    Switch("cudnn_deterministic", "_C._get_cudnn_deterministic", "False"),
    Switch("cudnn_enabled", "_C._get_cudnn_enabled", "True"),
    Switch("dtensor_implicit_replication", "_C._get_dtensor_allow_implicit_replication", "False"),
    Switch("graph_executor_optimize", "_C._get_graph_executor_optimize", "True"),
    Switch("linalg_backend", "_C._get_linalg_preferred_backend", "_LinalgBackend.Default"),
    Switch("math_sdp_reduction", "_C._get_math_sdp_allow_fp16_bf16_reduction", "False"),
    Switch("miopen_immediate", "_C._get_miopen_immediate", "False"),
    Switch("mkldnn_deterministic", "_C._get_mkldnn_deterministic", "False"),
    Switch("mkldnn_enabled", "_C._get_mkldnn_enabled", "True"),
    Switch("nnpack_enabled", "_C._get_nnpack_enabled", "True"),
    Switch("quantized_engine", "_C._get_qengine", "4" if os.uname().machine == "x86_64" else "3"),
    Switch("rocm_attention", "_C._get_rocm_fa_preferred_backend", "_ROCmFABackend.Default"),
    # The last one is of devices that are none of torch's.
    Switch("sdp_order", "_C._get_sdp_priority_order", "[1, 2, 0, 3, 4]", earlier="[1, 2, 0, 3, 0]"),
    Switch("sdp_cudnn", "_C._get_cudnn_sdp_enabled", "True"),
    Switch("sdp_flash", "_C._get_flash_sdp_enabled", "True"),
    Switch("sdp_math", "_C._get_math_sdp_enabled", "True"),
    Switch("sdp_mem_efficient", "_C._get_mem_efficient_sdp_enabled", "True"),
    Switch("sdp_overrideable", "_C._get_overrideable_sdp_enabled", "True"),
    Switch("sm_carveout", "_C._get_sm_carveout_experimental", "None"),
    Switch("mha_fastpath", "backends.mha.get_fastpath_enabled", "True"),
)

#: Switches that the oldest releases lack.
ADDED = frozenset(
    {"cublaslt_grouped_gemm", "cudnn_depthwise_kernel", "dtensor_implicit_replication", "miopen_immediate"}
)

#: The switches of precisions: those of releases that have a function for all of them, and of earlier ones.
_PRECISION_GETTER = "_get_fp32_precision_getter"
_PRECISIONS = tuple(
    Switch(f"fp32_precision/{backend}/{operation}", f"_C.{_PRECISION_GETTER}", default, (backend, operation))
    for backend, operation, default in (
        ("generic", "all", "none"),
        ("mkldnn", "all", "none"),
        ("mkldnn", "conv", "none"),
        ("mkldnn", "matmul", "none"),
        ("mkldnn", "rnn", "none"),
        ("cuda", "all", "none"),
        ("cuda", "conv", "tf32"),
        ("cuda", "matmul", "none"),
        ("cuda", "rnn", "tf32"),
    )
)
_EARLIER_PRECISIONS = (
    Switch("cublas_allow_tf32", "_C._get_cublas_allow_tf32", "False"),
    Switch("cudnn_allow_tf32", "_C._get_cudnn_allow_tf32", "True"),
    Switch("onednn_allow_tf32", "_C._get_onednn_allow_tf32", "False", earlier="None"),
)

#: Getters below ``torch._C`` with a setter that change no result: what is checked, warned of or noted; what another
#: switch shows too; what is no setting. A newer release has others: their values count, whatever they are.
UNRELATED_SWITCHES = frozenset(
    {
        *("_get_autograd_fallback_mode", "_get_backcompat_broadcast_warn", "_get_backcompat_keepdim_warn"),
        *("_get_cublas_allow_tf32", "_get_cudnn_allow_tf32", "_get_onednn_allow_tf32", "_get_graph_exec_group"),
        *("_get_deterministic_algorithms", "_get_float32_matmul_precision", "_get_thread_name"),
        *("_get_dispatch_mode", "_get_tensor_metadata", "_get_torch_function_state", "_get_tracing_state"),
        *("_get_value_trace", "_get_warnAlways"),
    }
)

#: Modules with options, where they are imported, and the name that an option's setting gets in front of its own.
OPTIONS: Mapping[str, str] = {
    "torch._inductor.config": "inductor",
    "torch._inductor.config_comms": "inductor_comms",
    "torch.distributed.config": "distributed",
    "torch._dynamo.config": "dynamo",
    "torch._functorch.config": "functorch",
    "torch._export.config": "export",
    "torch.compiler.config": "compiler",
    "torch.fx.experimental._config": "symbolic_shapes",
}

#: Options that begin so and change only where results are kept, what is printed, and who compiles them; and those that
#: torch writes while it compiles.
IRRELEVANT_OPTIONS = (
    "inductor/aot_inductor.metadata",
    "inductor/aot_inductor.output_path",
    "inductor/aot_inductor.serialized_in_spec",
    "inductor/aot_inductor.serialized_out_spec",
    "inductor/autotune_local_cache",
    "inductor/autotune_remote_cache",
    "inductor/bundled_autotune_remote_cache",
    "inductor/compile_threads",
    "inductor/cpp_cache_precompile_headers",
    "inductor/fx_graph_cache",
    "inductor/fx_graph_remote_cache",
    "inductor/trace.",
    "inductor/verbose_progress",
    "inductor/worker_",
    "functorch/enable_autograd_cache",
    "functorch/enable_remote_autograd_cache",
    "functorch/strict_autograd_cache",
    "dynamo/log_",
    "dynamo/verbose",
    "compiler/verbose",
    "compiler/log_",
)

#: Where torch keeps what runs with every module (``torch.nn.modules.module``), and the tables there.
_MODULES = "torch.nn.modules.module"
HOOKS = (
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_buffer_registration_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)

#: A name of torch's that is there once all of it is imported.
_LAST = "compiler"


def settings() -> dict[str, str]:
    """Setting -> value, for everything that is not at its default. Keeps no state: a plugin is in keys."""
    found = {
        name: value
        for name, value in os.environ.items()
        if (name.startswith(PREFIXES) or name in VARIABLES) and not name.startswith(IRRELEVANT)
    }
    if is_flushing():
        found["flush_denormal"] = "True"
    torch = sys.modules.get("torch")
    if is_imported(torch):
        found |= describe_modes(torch)  # at first: asking for switches would run the code of a mode that it refuses
        found |= switched(torch) | _hook_texts()
        for module, prefix in OPTIONS.items():
            config = sys.modules.get(module)
            if config is not None and hasattr(config, "_config"):
                changed = overridden(config._config, prefix)
                found |= {f"{prefix}/{name}": _text(value) for name, value in changed}
    return found


def is_imported(torch: Any) -> bool:
    """Whether torch is there, and not being imported by another thread."""
    return torch is not None and hasattr(torch, _LAST)


def is_flushing() -> bool:
    """Whether the processor takes numbers that are all but zero for zero. It may before torch is imported."""
    smallest = sys.float_info.min
    return smallest / 2 == 0


def switched(torch: Any) -> dict[str, str]:
    """The switches and the number of threads that are not at their defaults."""
    found = {}
    for switch in switches():
        value = str(switch.value(torch))
        if not switch.is_default(value):
            found[switch.name] = value
    found |= {name: str(getattr(torch._C, name)()) for name in unknown_switches()}
    if "autocast" in found:
        kinds = (kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind))
        found["autocast"] = ", ".join(f"{kind} {torch.get_autocast_dtype(kind)}" for kind in kinds) or "other"
    threads = torch.get_num_threads()
    if threads != threads_at_import():
        found["threads"] = str(threads)
    return found


def default_device(torch: Any) -> Any:
    """Also that of ``with torch.device(...)``.

    The function of earlier releases does not look at that, and that of the oldest fails once the default was set back.
    """
    is_set_back = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", torch) is None
    device = torch.device("cpu") if is_set_back else torch.get_default_device()
    contexts = sys.modules.get("torch.utils._device")
    if contexts is None or str(device) != "cpu":
        return device
    modes = reversed(torch.overrides._get_current_function_mode_stack())
    return next((mode.device for mode in modes if isinstance(mode, contexts.DeviceContext)), device)


@lru_cache(maxsize=1)
def switches() -> tuple[Switch, ...]:
    """Those that the imported torch has."""
    torch: Any = sys.modules["torch"]
    precisions = _PRECISIONS if hasattr(torch._C, _PRECISION_GETTER) else _EARLIER_PRECISIONS
    return tuple(
        switch
        for switch in (*LIVE, *precisions)
        if switch.name not in ADDED or hasattr(torch._C, switch.getter.removeprefix("_C."))
    )


@lru_cache(maxsize=1)
def unknown_switches() -> tuple[str, ...]:
    """The getters of the imported torch that have a setter, and that no table here has."""
    core = sys.modules["torch"]._C
    known = {switch.getter.removeprefix("_C.") for switch in switches()} | UNRELATED_SWITCHES
    pairs = {name for name in dir(core) if name.startswith("_get_") and hasattr(core, "_set_" + name[5:])}
    return tuple(sorted(pairs - known))


def _hook_texts() -> dict[str, str]:
    """The hooks of all modules. What one does is not told by its name: each counts for itself, in this process, by the
    number that torch registered it under, which none gets again."""
    modules = sys.modules.get(_MODULES)
    found = {}
    for table in HOOKS:
        hooks = list(getattr(modules, table, {}).items())
        # Those of this package are there while a module is made for an export, and for the thread that makes it.
        others = [each for each in hooks if not str(getattr(each[1], "__module__", "")).startswith("cachec_torch.")]
        if others:
            process = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]  # when it began
            hook_names = ", ".join(f"{_name(hook)} ({number})" for number, hook in others)
            found[table.removeprefix("_")] = f"{hook_names} of process {os.getpid()}, {process}"
    return found


def _name(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))


def overridden(options: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Those that are set to something else than what they would be otherwise, and that count."""
    for name, option in options.items():
        # A context variable; in earlier releases the value. The option itself, or an object, where nobody has set it.
        override = option.user_override
        value = override.get(option) if isinstance(override, ContextVar) else override
        if type(value) is object or value is option:
            continue
        default = option.default if type(option.env_value_default) is object else option.env_value_default
        if value != default and not f"{prefix}/{name}".startswith(IRRELEVANT_OPTIONS):
            yield name, value


def _text(value: Any) -> str:
    """One notation, without addresses: a function by its name."""
    if isinstance(value, partial):
        return f"partial({_text(value.func)}, {_text(value.args)}, {_text(value.keywords)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)}: {_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(_text, value))) + "}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value)


def threads_at_import() -> int:
    """How many threads torch begins with: as MKL has them, one a core, unless a variable says otherwise."""
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name, "").partition(",")[0]
        if value.isdecimal() and int(value) > 0:
            return int(value)
    return _cores(frozenset(os.sched_getaffinity(0)))


@lru_cache(maxsize=4)
def _cores(processors: frozenset[int]) -> int:
    if os.uname().machine != "x86_64":  # where torch comes without MKL
        return len(processors)
    cores = set()
    for number in processors:
        topology = Path(f"/sys/devices/system/cpu/cpu{number}/topology")
        try:
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            return len(processors)
    return len(cores)
