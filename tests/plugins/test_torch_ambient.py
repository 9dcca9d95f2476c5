"""torch's live settings in keys: what is reported, the same before and after the import, and that none is missing."""

from __future__ import annotations

import json
import mmap
import os
import re
import subprocess
import sys
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from torch.overrides import TorchFunctionMode
from torch.serialization import LoadEndianness
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from cachec.model import Reason
from cachec_torch import plugin
from cachec_torch.ambient import (
    HOOKS,
    IRRELEVANT,
    OPTIONS,
    PREFIXES,
    UNRELATED_SWITCHES,
    VARIABLES,
    switches,
    threads_at_import,
    unknown_switches,
)
from cachec_torch.modes import MODES

ROOT = Path(__file__).parents[2]
TORCH = Path(torch.__file__).parent

BEFORE_AND_AFTER = """
import json, os, sys
from cachec_torch import plugin
before = plugin.ambient()
assert "torch" not in sys.modules and "numpy" not in sys.modules
import torch, torch._inductor.config, torch._dynamo, torch.export
print(json.dumps([before, plugin.ambient()]))
"""


def ask(**variables: str) -> tuple[dict[str, str], dict[str, str]]:
    """What a new process with these variables reports before and after ``import torch``."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    done = subprocess.run(
        [sys.executable, "-c", BEFORE_AND_AFTER], env=environ | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    return before, after


@pytest.mark.long
@pytest.mark.parametrize(
    ("variables", "reported"),
    [
        ({}, {}),
        ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "1"}),
        ({"MKL_NUM_THREADS": "1"}, {"MKL_NUM_THREADS": "1"}),
        ({"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "CXX": "clang++"}, {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "CXX": "clang++"}),
        ({"TORCHINDUCTOR_CACHE_DIR": "/nowhere", "TORCH_LOGS": "+dynamo"}, {}),
    ],
)
def test_the_same_before_and_after_the_import(variables, reported) -> None:
    assert ask(**variables) == (reported, reported)


@contextmanager
def changed(get: Any, set_: Any, value: Any):
    before = get()
    set_(value)
    try:
        yield
    finally:
        set_(before)


def attribute(owner: Any, name: str, value: Any) -> AbstractContextManager[Any]:
    return changed(lambda: getattr(owner, name), lambda new: setattr(owner, name, new), value)


def of_torch(module: str, name: str, value: Any) -> AbstractContextManager[Any]:
    """By the pair of a getter and a setter."""
    owner = getattr(torch, module)
    return changed(getattr(owner, f"get_{name}"), getattr(owner, f"set_{name}"), value)


def option(module: str, name: str, value: Any) -> AbstractContextManager[Any]:
    import importlib

    return importlib.import_module(module).patch({name: value})


def there(module: Any, name: str, reported: dict[str, str]) -> dict[str, str]:
    """What is reported where this release has such an option or switch."""
    return reported if hasattr(module, name) else {}


#: Of torch with the package that its strategies need.
EINSUM = {"opt_einsum": "True, greedy"} if torch.backends.opt_einsum.is_available() else {}

CHANGES: dict[str, tuple[Any, dict[str, str]]] = {
    "dtype": (
        lambda: changed(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
        {"default_dtype": "torch.float64"},
    ),
    "device": (lambda: torch.device("meta"), {"default_device": "meta", "function_modes": "1"}),
    "deterministic": (
        lambda: changed(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
        {"deterministic": "True"} | there(torch._inductor.config, "deterministic", {"inductor/deterministic": "True"}),
    ),
    "precision": (
        lambda: changed(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"),
        {"float32_matmul_precision": "high"}
        | (
            {"fp32_precision/cuda/matmul": "tf32", "fp32_precision/mkldnn/matmul": "tf32"}
            if hasattr(torch._C, "_get_fp32_precision_getter")
            else {"cublas_allow_tf32": "True"}
        ),
    ),
    "precision of one backend": (
        lambda: attribute(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
        {"fp32_precision/mkldnn/matmul": "bf16", "float32_matmul_precision": "mixed"},
    ),
    "anomalies": (torch.autograd.detect_anomaly, {"anomaly": "True"}),
    "anomalies without NaN": (
        lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
        {"anomaly": "True", "anomaly_check_nan": "False"},
    ),
    "autocast without a cache": (
        lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
        {"autocast": "cpu torch.bfloat16", "autocast_cache": "False"},
    ),
    "deterministic, and no fill": (
        lambda: attribute(torch.utils.deterministic, "fill_uninitialized_memory", False),
        {"deterministic_fill": "False"},
    ),
    "one thread of gradients": (
        lambda: torch.autograd.set_multithreading_enabled(False),
        {"backward_threads": "False"},
    ),
    "replayed views": (lambda: torch.autograd._force_original_view_tracking(True), {"view_replay": "True"}),
    "forward gradients": (torch.autograd.forward_ad.dual_level, {"forward_level": "0"}),
    "no forward gradients": (
        lambda: torch.autograd.forward_ad._set_fwd_grad_enabled(False),
        {"forward_gradients": "False"},
    ),
    "no hooks of saved tensors": (
        lambda: torch.autograd.graph.disable_saved_tensors_hooks("not here"),
        {"saved_tensors_hooks": "False"},
    ),
    "functions of classes": (torch._C.DisableTorchFunctionSubclass, {"functions_of_classes": "False"}),
    "sparse tensors": (torch.sparse.check_sparse_tensor_invariants, {"check_sparse": "True"}),
    "parametrizations": (torch.nn.utils.parametrize.cached, {"parametrizations_cached": "1"}),
    "printing": (
        lambda: attribute(torch._tensor_str.PRINT_OPTS, "precision", 8),
        {f"printing/{name}": str(value) for name, value in vars(torch._tensor_str.PRINT_OPTS).items()}
        | {"printing/precision": "8"},
    ),
    "einsum": (lambda: attribute(torch.backends.opt_einsum, "strategy", "greedy"), EINSUM),
    "stance": (lambda: torch.compiler.set_stance("force_eager"), {"stance": "force_eager, False, None"}),
    "backend of torch.compile": (
        lambda: changed(torch.compiler.get_default_backend, torch.compiler.set_default_backend, "eager"),
        {"default_backend": "eager"},
    ),
    "order of bytes in files": (
        lambda: of_torch("serialization", "default_load_endianness", LoadEndianness.BIG),
        {"load_byte_order": "LoadEndianness.BIG"},
    ),
    "checksums of files": (lambda: of_torch("serialization", "crc32_options", False), {"save_checksum": "False"}),
    "mapped files": (
        lambda: torch.serialization.set_default_mmap_options(mmap.MAP_SHARED),
        {"load_mmap": str(int(mmap.MAP_SHARED))},
    ),
    "swapped parameters": (
        lambda: of_torch("__future__", "swap_module_params_on_conversion", True),
        {"swap_parameters": "True"},
    ),
    "overwritten parameters": (
        lambda: of_torch("__future__", "overwrite_module_params_on_conversion", True),
        {"overwrite_parameters": "True"},
    ),
    "fusion of TorchScript": (
        lambda: changed(torch._C._jit_texpr_fuser_enabled, torch._C._jit_set_texpr_fuser_enabled, False),
        {"jit_texpr_fuser": "False"},
    ),
    "threads": (
        lambda: changed(torch.get_num_threads, torch.set_num_threads, threads_at_import() + 1),
        {"threads": str(threads_at_import() + 1)},
    ),
    "denormals": (lambda: changed(lambda: False, torch.set_flush_denormal, True), {"flush_denormal": "True"}),
    "no gradients": (torch.no_grad, {"grad": "False"}),
    "inference": (
        torch.inference_mode,
        dict.fromkeys(("grad", "forward_gradients", "backward_threads"), "False") | {"inference_mode": "True"},
    ),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), {"autocast": "cpu torch.bfloat16"}),
    "autocast to half": (lambda: torch.autocast("cpu", torch.float16), {"autocast": "cpu torch.float16"}),
    "oneDNN": (lambda: torch.backends.mkldnn.flags(enabled=False), {"mkldnn_enabled": "False"}),
    "attention": (
        lambda: changed(torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, False),
        {"sdp_flash": "False"},
    ),
    "Inductor": (lambda: option("torch._inductor.config", "max_autotune", True), {"inductor/max_autotune": "True"}),
    "Inductor, of a function": (
        lambda: option("torch._inductor.config", "post_grad_custom_pre_pass", changed),
        {"inductor/post_grad_custom_pre_pass": f"{__name__}.changed"},
    ),
    "Dynamo": (lambda: option("torch._dynamo.config", "recompile_limit", 3), {"dynamo/recompile_limit": "3"}),
    "AOTAutograd": (
        lambda: option("torch._functorch.config", "activation_memory_budget", 0.5),
        {"functorch/activation_memory_budget": "0.5"},
    ),
    "set to its default": (lambda: option("torch._inductor.config", "max_autotune", False), {}),
    "where results are kept": (lambda: option("torch._inductor.config", "fx_graph_cache", False), {}),
    "C++ options": (lambda: option("torch._inductor.config", "cpp.threads", 7), {"inductor/cpp.threads": "7"}),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_change_is_reported_and_gone_afterwards(how) -> None:
    change, reported = CHANGES[how]
    before = plugin.ambient()
    with change():
        assert dict(plugin.ambient().items() - before.items()) == reported
    assert plugin.ambient() == before


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("around", "words"),
    [
        (Doubling, "Doubling"),
        (TorchFunctionMode, "TorchFunctionMode"),
        (Dispatching, "Dispatching"),
        (lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x), "hooks of saved tensors"),
        (lambda: torch.compiler.set_stance("default", force_backend=lambda graph, _: graph.forward), "function"),
    ],
)
def test_a_mode_that_only_its_code_describes_is_refused(around, words, cache) -> None:
    """Two modes of one class may do different things."""

    @cache.stage(version="1", tools=["torch"])
    def one() -> float:
        return 1.0

    with around():
        result, outcome = cache.call(one)
    assert (result, outcome.reason) == (1.0, Reason.PROCESS_BOUND)
    assert words in outcome.detail


def test_a_transformation_around_a_stage_is_refused(cache) -> None:
    outcomes = []

    @cache.stage(version="1", tools=["torch"])
    def one() -> float:
        return 1.0

    def inside(x):
        outcomes.append(cache.call(one)[1].reason)
        return x

    torch.func.vmap(inside)(torch.ones(2))
    assert outcomes == [Reason.PROCESS_BOUND]


def test_a_library_that_raises_for_a_setting_ends_no_call(cache, monkeypatch) -> None:
    def broken() -> None:
        raise ValueError("a setting of a newer release")

    @cache.stage(version="1", tools=["torch"])
    def one() -> float:
        return 1.0

    monkeypatch.setattr(torch, "get_num_threads", broken)
    result, outcome = cache.call(one)
    assert (result, outcome.reason) == (1.0, Reason.UNSUPPORTED_VERSION)
    assert "a setting of a newer release" in outcome.detail


def test_a_precision_that_the_earlier_getter_has_no_name_for(cache) -> None:
    @cache.stage(version="1", tools=["torch"])
    def one() -> float:
        return 1.0

    reasons = [cache.call(one)[1].reason]
    for _ in range(2):
        with attribute(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"):
            reasons.append(cache.call(one)[1].reason)
    assert reasons == [Reason.FIRST_RUN, Reason.AMBIENT_CHANGED, Reason.HIT]


@pytest.mark.parametrize("table", HOOKS)
def test_hooks_of_all_modules_count_each_for_itself(table) -> None:
    """Also one at the address of another that is gone."""
    hooks, before, values = getattr(torch.nn.modules.module, table), plugin.ambient(), []
    for hook in [lambda *_: None] * 2:
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        ((name, value),) = plugin.ambient().items() - before.items()
        assert name == table.removeprefix("_")
        values.append(value)
        handle.remove()
    assert values[0] != values[1]
    assert plugin.ambient() == before


def test_no_table_of_hooks_is_missing() -> None:
    """Of those of torch that have hooks of all modules; the others say how they are called."""
    there = {name for name, value in vars(torch.nn.modules.module).items() if isinstance(value, dict)}
    tables = {name for name in there if name.startswith("_global_") and name.endswith("hooks")}
    assert tables == set(HOOKS)


def test_no_variable_that_torch_reads_is_missing() -> None:
    """Of the files in which torch's options are declared, and of the compilers' own."""
    files = [*TORCH.glob("**/config.py"), *TORCH.glob("**/_config.py")]
    for room in ("_inductor", "_dynamo", "_functorch", "_export"):
        files += (TORCH / room).rglob("*.py")
    read = re.compile(r"""(?:environ(?:\.get)?[([]|getenv\(|env_name_(?:default|force)=\[?)\s*["'](\w+)["']""")
    names = {name for path in files for name in read.findall(path.read_text())}
    assert len(names) > 150
    strange = {name for name in names if not name.startswith(PREFIXES)} - VARIABLES - UNRELATED_VARIABLES
    assert strange == set(), "new variables: judge them in cachec_torch.ambient"
    assert all(name.startswith(PREFIXES) for name in IRRELEVANT)


#: What is printed and logged; what is looked for where nothing else says; other systems; torch's own tests.
UNRELATED_VARIABLES = {
    *("CI", "LOG_AUTOTUNE_RESULTS", "LOG_TLPARSE", "MAST_HPC_JOB_NAME", "PT2_COMPILE_ID_PREFIX", "ROLE_RANK"),
    *("CONDA_EXE", "CONDA_PREFIX", "CPLUS_INCLUDE_PATH", "CUDACXX", "CUDA_HOME", "LD_LIBRARY_PATH"),
    *("LEVEL_ZERO_V1_SDK_PATH", "ONEAPI_ROOT", "ProgramFiles", "WINDOWS_CUDA_HOME"),
    *("BREAK", "DUMP_AOTI_MINIFIER", "TVM_SCHEDULER", "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"),
}


def test_no_switch_of_torch_is_missing() -> None:
    """Those with a function that sets them and one that tells. Earlier releases have one for statistics (vital)."""
    assert unknown_switches() == (), "new switches: judge them in cachec_torch.ambient"
    setters = {name for name in dir(torch) if name.startswith(("set_", "use_"))}
    assert setters - {"set_vital"} == set(SETTERS), "new switches: judge them in cachec_torch.ambient"
    names = {switch.name for switch in switches()} | {"threads", "flush_denormal", "printing"}
    names |= {mode.name for mode in MODES}
    assert set(filter(None, SETTERS.values())) <= names


def test_no_setter_without_a_getter_is_missing() -> None:
    core = torch._C
    setters = {name for name in dir(core) if name.startswith("_set_") and not hasattr(core, "_get_" + name[5:])}
    written = {mode.setter.removeprefix("_C.") for mode in MODES}
    assert setters - written <= UNPAIRED, "new switches: judge them in cachec_torch.modes"


#: Setters of what a switch has by another name, of what changes no result, and of torch's own parts.
UNPAIRED = {
    *("_set_default_dtype", "_set_default_tensor_type", "_set_fp32_precision_setter", "_set_grad_enabled"),
    *("_set_sdp_use_cudnn", "_set_sdp_use_fa3", "_set_sdp_use_flash", "_set_sdp_use_math"),
    *("_set_sdp_use_mem_efficient", "_set_sdp_use_overrideable"),
    *("_set_cached_tensors_enabled", "_set_conj", "_set_default_mobile_cpu_allocator", "_set_generator_metaclass"),
    *("_set_meta_in_tls_dispatch_include", "_set_neg"),
    *("_set_override_stale_capture_stream", "_set_print_stack_traces_on_fatal_signal"),
    *("_set_should_use_format_with_string_table", "_set_skip_next_torch_function", "_set_throw_on_mutable_data_ptr"),
    *("_set_warn_deprecated_on_mutable_data_ptr", "_set_warn_on_accumulate_grad_stream_mismatch"),
    *("_set_worker_pids", "_set_worker_signal_handlers"),
}


def test_a_switch_of_a_newer_release_counts(monkeypatch) -> None:
    """Whatever its value is: which is the default is not known."""
    monkeypatch.setattr(torch._C, "_get_new_kernels", lambda: False, raising=False)
    monkeypatch.setattr(torch._C, "_set_new_kernels", print, raising=False)
    unknown_switches.cache_clear()
    try:
        assert plugin.ambient()["_get_new_kernels"] == "False"
    finally:
        unknown_switches.cache_clear()


def test_unrelated_switches_are_no_others() -> None:
    assert {switch.getter.removeprefix("_C.") for switch in switches()} & UNRELATED_SWITCHES <= PRECISIONS


#: Switches that newer releases show by their precisions, and earlier ones by these.
PRECISIONS = {"_get_cublas_allow_tf32", "_get_cudnn_allow_tf32", "_get_onednn_allow_tf32"}


#: What a function of torch's sets -> how that is reported; empty where it changes no result.
SETTERS = {
    "set_anomaly_enabled": "anomaly",
    "set_autocast_cache_enabled": "autocast_cache",
    "set_autocast_cpu_dtype": "autocast",
    "set_autocast_cpu_enabled": "autocast",
    "set_autocast_dtype": "autocast",
    "set_autocast_enabled": "autocast",
    "set_autocast_gpu_dtype": "autocast",
    "set_autocast_ipu_dtype": "autocast",
    "set_autocast_ipu_enabled": "autocast",
    "set_autocast_xla_dtype": "autocast",
    "set_autocast_xla_enabled": "autocast",
    "set_default_device": "default_device",
    "set_default_dtype": "default_dtype",
    "set_default_tensor_type": "default_dtype",
    "set_deterministic_debug_mode": "deterministic",
    "set_float32_matmul_precision": "float32_matmul_precision",
    "set_flush_denormal": "flush_denormal",
    "set_grad_enabled": "grad",
    "set_num_interop_threads": "",
    "set_num_threads": "threads",
    "set_printoptions": "printing",
    "set_rng_state": "",
    "set_warn_always": "",
    "use_deterministic_algorithms": "deterministic",
}


def test_every_module_with_options_is_known() -> None:
    """Of those that torch has; no result comes from the one by which ``torch.save`` writes."""
    found = {path for path in TORCH.rglob("*.py") if "testing" not in path.parts and is_with_options(path)}
    names = {".".join(path.relative_to(TORCH.parent).with_suffix("").parts) for path in found}
    assert names - {"torch.utils._config_module", "torch.utils.serialization.config"} <= set(OPTIONS)


def is_with_options(path: Path) -> bool:
    return path.name.endswith(("config.py", "config_comms.py")) and "install_config_module(" in path.read_text()
