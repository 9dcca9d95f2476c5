"""The settings of JAX that count in keys, as they are now. This module does not import JAX.

JAX keeps its settings as *options* (``jax._src.config``). When JAX is imported, an option takes its value from the
environment variable with the option's name in upper case. It can change later, for the process or, by a context
manager, for one thread. So this module reads the environment before the import and the options after it. Both give the
same notation. Only settings that differ from JAX's defaults are reported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cachec_jax.versions import TRIED_RELEASES

_Value = bool | int | float | str | None

#: Option -> its default in the newest release that has it. These options change tracing, compiling, or the result of a
#: computation. A test compares this table and the next ones with the options of the installed JAX.
DEFAULTS: Mapping[str, _Value] = {
    "allow_ragged_dot_tpu_explicit_transpose": True,
    "check_rep": False,
    "check_vma": False,
    "eager_constant_folding": False,
    "jax_accurate_erf_inv": False,
    "jax_allow_f16_reductions": True,
    "jax_auto_pcast": True,
    "jax_backend_target": "",
    "jax_bcoo_cusparse_lowering": False,
    "jax_check_static_indices": False,
    "jax_collectives_common_channel_id": True,
    "jax_compiler_enable_remat_pass": True,
    "jax_custom_jvp3": False,
    "jax_custom_vjp3": False,
    "jax_custom_vjp_disable_shape_check": False,
    "jax_debug_infs": False,
    "jax_debug_key_reuse": False,
    "jax_debug_nans": False,
    "jax_default_device": None,
    "jax_default_dtype_bits": "_default",
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_disable_jit": False,
    "jax_disable_most_optimizations": False,
    "jax_disable_vmap_shmap_error": False,
    "jax_dynamic_shapes": False,
    "jax_embedded_constants_max_bytes": 32,
    "jax_enable_custom_prng": False,
    "jax_enable_custom_vjp_by_custom_transpose": False,
    "jax_enable_empty_arrays": False,
    "jax_enable_pgle": False,
    "jax_enable_x64": False,
    "jax_error_checking_behavior_divide": "ignore",
    "jax_error_checking_behavior_nan": "ignore",
    "jax_error_checking_behavior_oob": "ignore",
    "jax_exec_time_optimization_effort": 0.0,
    "jax_experimental_unsafe_xla_runtime_errors": False,
    "jax_explicit_x64_dtypes": "warn",
    "jax_export_calling_convention_version": 10,
    "jax_export_deserialize_expired_versions": False,
    "jax_export_ignore_forward_compatibility": False,
    "jax_high_dynamic_range_gumbel": False,
    "jax_hlo_source_file_canonicalization_regex": None,
    "jax_legacy_prng_key": "allow",
    "jax_memory_fitting_effort": 0.0,
    "jax_memory_fitting_level": "O2",
    "jax_mosaic_allow_hlo": False,
    "jax_mosaic_unzip_debug_locations": True,
    "jax_mutable_array_checks": True,
    "jax_no_execution": False,
    "jax_no_tracing": False,
    "jax_num_cpu_devices": -1,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_optimization_level": "UNKNOWN",
    "jax_pallas_auto_assign_collective_ids": "no",
    "jax_pallas_auto_assign_collective_ids_limit": 25,
    "jax_pallas_enable_debug_checks": False,
    "jax_pallas_poison_buffers": False,
    "jax_pallas_use_mosaic_gpu": True,
    "jax_pgle_aggregation_percentile": 90,
    "jax_pgle_profiling_runs": 3,
    "jax_pjrt_client_create_options": None,
    "jax_platform_name": "",
    "jax_platforms": None,
    "jax_pmap_no_rank_reduction": True,
    "jax_pmap_shmap_merge": True,
    "jax_ragged_dot_use_gpu_pallas_triton_lowering": False,
    "jax_ragged_dot_use_ragged_dot_instruction": True,
    "jax_raise_on_ppermute_sort_diff": True,
    "jax_random_seed_offset": 0,
    "jax_refs_to_pins": False,
    "jax_remat3": False,
    "jax_remat_barrier_no_cotangents": False,
    "jax_remove_size_one_mesh_axis_from_type": False,
    "jax_safer_randint": True,
    "jax_scan3": False,
    "jax_serialization_version": 0,
    "jax_softmax_custom_jvp": False,
    "jax_spmd_mode": "allow_jit",
    "jax_threefry_gpu_kernel_lowering": False,
    "jax_threefry_partitionable": True,
    "jax_use_cpp_shard_args": False,
    "jax_use_direct_linearize": True,
    "jax_use_emit_pipeline_primitive": False,
    "jax_use_hlo_logistic_lowering": None,
    "jax_use_magma": "auto",
    "jax_use_rgv3": True,
    "jax_use_shardy_partitioner": True,
    "jax_use_simplified_jaxpr_constants": False,
    "jax_varying_axes_in_types": True,
    "jax_vjp3": False,
    "jax_vmap_primitive": False,
    "jax_xla_backend": "",
    "jax_xla_profile_version": 0,
}

#: Release -> the defaults before it that it changed, the newest release first.
_FORMER_DEFAULTS: Mapping[tuple[int, ...], Mapping[str, _Value]] = {
    (0, 9): {"jax_default_dtype_bits": "64"},
    (0, 8, 1): {"jax_ragged_dot_use_ragged_dot_instruction": False},
    (0, 8): {"jax_pmap_shmap_merge": False},
    (0, 7, 2): {"jax_mutable_array_checks": False, "jax_safer_randint": False},
    (0, 7): {
        "jax_export_calling_convention_version": 9,
        "jax_use_direct_linearize": False,
        "jax_use_shardy_partitioner": False,
    },
    (0, 6, 1): {"jax_memory_fitting_level": "UNKNOWN"},
}

#: Options that are in no key: they change printing, checks, caching, timeouts, or which devices are visible.
IRRELEVANT = frozenset(
    {
        "jax2tf_associative_scan_reductions",
        "jax2tf_default_native_serialization",
        "jax_array_garbage_collection_guard",
        "jax_captured_constants_report_frames",
        "jax_captured_constants_warn_bytes",
        "jax_check_proxy_envs",
        "jax_check_tracer_leaks",
        "jax_compilation_cache_check_contents",
        "jax_compilation_cache_dir",
        "jax_compilation_cache_expect_pgle",
        "jax_compilation_cache_include_metadata_in_key",
        "jax_compilation_cache_max_size",
        "jax_compiler_detailed_logging_min_ops",
        "jax_cpu_collectives_implementation",
        "jax_cpu_enable_async_dispatch",
        "jax_cpu_enable_gloo_collectives",
        "jax_cpu_get_global_topology_timeout_minutes",
        "jax_cpu_get_local_topology_timeout_minutes",
        "jax_cross_host_transfer_socket_address",
        "jax_cross_host_transfer_timeout_seconds",
        "jax_cross_host_transfer_transfer_size",
        "jax_cross_host_transport_addresses",
        "jax_cuda_visible_devices",
        "jax_debug_leaked_clients_on_clear_backends",
        "jax_debug_log_modules",
        "jax_disable_bwd_checks",
        "jax_disallow_mesh_context_manager",
        "jax_distributed_debug",
        "jax_distributed_verify_secure_credentials",
        "jax_dump_ir_modes",
        "jax_dump_ir_to",
        "jax_enable_checks",
        "jax_enable_compilation_cache",
        "jax_enable_preemption_service",
        "jax_enable_recoverability",
        "jax_explain_cache_misses",
        "jax_force_dcn_cross_host_transfers",
        "jax_include_debug_info_in_dumps",
        "jax_include_full_tracebacks_in_locations",
        "jax_log_checkpoint_residuals",
        "jax_log_compiles",
        "jax_logging_level",
        "jax_mock_gpu_topology",
        "jax_mtls_ca_file",
        "jax_mtls_cert_file",
        "jax_mtls_key_file",
        "jax_mtls_peer_uri_prefix",
        "jax_oneapi_visible_devices",
        "jax_pallas_verbose_errors",
        "jax_persistent_cache_enable_xla_caches",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
        "jax_pprint_use_color",
        "jax_raise_persistent_cache_errors",
        "jax_remove_custom_partitioning_ptr_from_cache_key",
        "jax_rocm_visible_devices",
        "jax_send_traceback_to_runtime",
        "jax_share_binary_between_hosts",
        "jax_share_binary_between_hosts_timeout_ms",
        "jax_sort_devices_by_process_index",
        "jax_source_url_schema",
        "jax_thread_guard",
        "jax_traceback_filtering",
        "jax_traceback_in_locations_limit",
        "jax_tracer_error_num_traceback_frames",
        "jax_transfer_guard",
        "jax_transfer_guard_device_to_device",
        "jax_transfer_guard_device_to_host",
        "jax_transfer_guard_host_to_device",
        "mock_num_gpu_processes",
    }
)

#: State that only context managers set: attribute of one of ``_CONTEXT_MODULES`` -> its value outside of every one.
_CONTEXTS: Mapping[str, object] = {
    "mesh_context_manager": (),
    "abstract_mesh_context_manager": None,
    "compute_on_context_manager": None,
    "device_context": None,
    "xla_metadata_context_manager": None,
    "pallas_tpu_interpret_mode_context_manager": None,
    "layout_tracing_mode": "LayoutMode.AUTO",
    "no_collectives": frozenset(),
}

#: The contexts that older releases do not have.
_LATER_CONTEXTS = frozenset({"layout_tracing_mode", "no_collectives", "pallas_tpu_interpret_mode_context_manager"})

#: The modules of ``jax._src`` with contexts.
_CONTEXT_MODULES = ("config", "mesh", "layout")

#: State that is in no key: the dispatch cache (``cachec_jax.trace_isolation``), and the current trace.
_OTHER_CONTEXTS = frozenset({"axis_env_state", "jax_jit_cpp_cache_obj", "trace_state"})

#: Variables that XLA reads by itself; no option of JAX shows them.
_XLA_VARIABLES = (b"XLA_FLAGS", b"LIBTPU_INIT_ARGS", b"NVIDIA_TF32_OVERRIDE", b"TF_XLA_FLAGS")

_TRUE = frozenset({"y", "yes", "t", "true", "on", "1"})
_FALSE = frozenset({"n", "no", "f", "false", "off", "0"})

#: Options with a variable that JAX converts to lower case (``jax/_src/xla_bridge.py``).
_LOWER_CASED = frozenset({"jax_backend_target", "jax_platform_name"})

#: Options that no variable sets.
_NO_VARIABLE = frozenset({"jax_xla_backend"})

#: Variables that set another option than their name says (a misspelling in ``jax/_src/config.py``).
_MISSPELT = {b"JAX_EXPORT_IGNORE_FORWARD_COMPATIBILIY": "jax_export_ignore_forward_compatibility"}


#: Environment variable -> the option that it sets.
_VARIABLES = {name.upper().encode(): name for name in DEFAULTS if name not in _NO_VARIABLE} | _MISSPELT

#: Each option of ``DEFAULTS`` with its default and the default's notation.
_DEFAULT_TEXTS = tuple((name, default, str(default)) for name, default in DEFAULTS.items())

#: Options with different defaults in different releases.
_DEFAULT_CHANGED = frozenset(name for former in _FORMER_DEFAULTS.values() for name in former)

_CLASSIFIED = frozenset(DEFAULTS) | IRRELEVANT


def defaults_of_release(version: str) -> Mapping[str, _Value]:
    """Return ``DEFAULTS`` as they are in a release of JAX."""
    return {**DEFAULTS, **_former_defaults(version)}


def read_settings() -> dict[str, str]:
    """Return option or variable -> value for each one that is not at its default. Keeps no state: a plugin is in
    keys."""
    # While another thread imports JAX, the environment still counts.
    live = hasattr(sys.modules.get("jax"), "jit")
    values = _read_options(sys.modules["jax"]) if live else _read_environment(os.environb)
    for variable in _XLA_VARIABLES:
        value = os.environb.get(variable)
        if value:
            values[variable.decode()] = os.fsdecode(value)
    return values


def _former_defaults(version: str) -> dict[str, _Value]:
    release = _release(version)
    former: dict[str, _Value] = {}
    for first, others in _FORMER_DEFAULTS.items():
        if release >= first:
            break
        former.update(others)
    return former


def _read_options(jax: Any) -> dict[str, str]:
    modules = context_modules(jax)
    values = {}
    holders = jax._src.config.config._value_holders
    former = _former_defaults(jax.__version__)
    for name, default, expected in _DEFAULT_TEXTS:
        holder = holders.get(name)
        if former and name in former:
            default, expected = former[name], str(former[name])
        # Most values are the default object itself, so a comparison of identities is enough.
        if holder is not None and (value := holder.value) is not default and (text := _text(value)) != expected:
            values[name] = text
    if not _CLASSIFIED.issuperset(holders):  # options of a newer JAX: their defaults are unknown
        values.update((name, _text(holders[name].value)) for name in holders.keys() - _CLASSIFIED)
    for name, unset in _CONTEXTS.items():
        module = next((each for each in modules if hasattr(each, name)), modules[0])
        if name in _LATER_CONTEXTS and not hasattr(module, name):
            continue
        value = getattr(module, name).value
        if value is not unset and value != unset and not getattr(value, "empty", False) and str(value) != unset:
            values[name] = _context_text(value)
    if _is_newer(jax.__version__):
        values.update(_unknown_contexts(modules, holders))
    return values


def _context_text(value: Any) -> str:
    """Return the text of a context's value, and the devices of meshes, which a mesh's own text omits."""
    meshes = [each for each in (value if isinstance(value, tuple) else (value,)) if type(each).__name__ == "Mesh"]
    devices = [f"{device.platform}:{device.id}" for mesh in meshes for device in mesh.devices.flat]
    return f"{value} on {', '.join(devices)}" if devices else str(value)


def context_modules(jax: Any) -> list[Any]:
    """Return the modules of JAX with contexts; the module of the options is the first."""
    return [getattr(jax._src, name) for name in _CONTEXT_MODULES if hasattr(jax._src, name)]


def _unknown_contexts(modules: Sequence[Any], holders: Mapping[str, Any]) -> dict[str, str]:
    """Return the state of a newer JAX that its new context managers set."""
    options = set(map(id, holders.values()))
    return {
        name: str(context.value)
        for module in modules
        for name, context in vars(module).items()
        if isinstance(context, modules[0].config_ext.Config)
        and id(context) not in options
        and name not in _CONTEXTS.keys() | _OTHER_CONTEXTS
    }


def _read_environment(environ: Mapping[bytes, bytes]) -> dict[str, str]:
    values = {}
    unknown = []
    for variable in environ:
        option = _VARIABLES.get(variable)
        if option is not None and not (variable in _MISSPELT and option.upper().encode() in environ):
            text = _parse_variable(option, os.fsdecode(environ[variable]))
            if option in _DEFAULT_CHANGED or text != str(DEFAULTS[option]):  # the release is not known yet
                values[option] = text
        elif variable.startswith(b"JAX_") and variable.decode("ascii", "replace").lower() not in IRRELEVANT:
            unknown.append(variable)
    if unknown and _is_newer(_installed_version()):  # they may be options of it
        values.update((os.fsdecode(variable), os.fsdecode(environ[variable])) for variable in unknown)
    return values


def _installed_version() -> str:
    from cachec.programs.supported_versions import version_of

    return version_of("jax")


def _is_newer(version: str) -> bool:
    """Whether a release is newer than the tried ones."""
    return _release(version) >= _release(TRIED_RELEASES["jax"].partition("<")[2])


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".")[:3] if number.isdigit())


def _parse_variable(option: str, raw: str) -> str:
    """Return the notation of the value that JAX would read from ``raw``; ``raw`` itself if JAX would refuse it."""
    default = DEFAULTS[option]
    if isinstance(default, bool):
        word = raw.lower()
        return "True" if word in _TRUE else "False" if word in _FALSE else raw
    convert: Callable[[str], object] = int if isinstance(default, int) else float if isinstance(default, float) else str
    try:
        return _text(convert(raw.lower() if option in _LOWER_CASED else raw))
    except ValueError:
        return raw


def _text(value: object) -> str:
    """Return a value as text: a member of an enumeration by its name as JAX's variables spell it, others as printed."""
    name = getattr(value, "name", None)
    if isinstance(name, str) and isinstance(value, int | str):
        return name.lower()
    return str(value)
