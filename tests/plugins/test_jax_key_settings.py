"""JAX's live settings in keys: what is reported, and that importing JAX changes nothing of it."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax._src import config as jax_config

from cachec_jax import key_settings, plugin
from cachec_jax.key_settings import (
    DEFAULTS,
    IRRELEVANT,
    _context_text,
    _text,
    _unknown_contexts,
    context_modules,
    defaults_of_release,
)

BEFORE_AND_AFTER = """
import json, sys
from cachec_jax import plugin
before = plugin.ambient()
assert "jax" not in sys.modules and "numpy" not in sys.modules
import jax
print(json.dumps([before, plugin.ambient()]))
"""


def ask(**variables: str) -> tuple[dict[str, str], dict[str, str]]:
    """What a new process with these variables reports before and after ``import jax``."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    done = subprocess.run(
        [sys.executable, "-c", BEFORE_AND_AFTER], env=environ | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    return before, after


def test_nothing_set_reports_nothing_before_and_after_the_import():
    assert ask() == ({}, {})


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("variables", "reported"),
    [
        ({"JAX_ENABLE_X64": "1"}, {"jax_enable_x64": "True"}),
        ({"JAX_ENABLE_X64": "Yes", "JAX_DEBUG_NANS": "off"}, {"jax_enable_x64": "True"}),
        ({"JAX_ENABLE_X64": "0"}, {}),
        ({"JAX_THREEFRY_PARTITIONABLE": "false"}, {"jax_threefry_partitionable": "False"}),
        ({"JAX_DEFAULT_MATMUL_PRECISION": "highest"}, {"jax_default_matmul_precision": "highest"}),
        ({"JAX_NUMPY_DTYPE_PROMOTION": "strict"}, {"jax_numpy_dtype_promotion": "strict"}),
        ({"JAX_NUMPY_DTYPE_PROMOTION": "standard"}, {}),
        ({"JAX_EXPLICIT_X64_DTYPES": "allow"}, {"jax_explicit_x64_dtypes": "allow"}),
        ({"JAX_NUMPY_RANK_PROMOTION": "raise"}, {"jax_numpy_rank_promotion": "raise"}),
        ({"JAX_DEFAULT_PRNG_IMPL": "rbg"}, {"jax_default_prng_impl": "rbg"}),
        ({"JAX_SOFTMAX_CUSTOM_JVP": "True"}, {"jax_softmax_custom_jvp": "True"}),
        ({"JAX_RANDOM_SEED_OFFSET": "007"}, {"jax_random_seed_offset": "7"}),
        ({"JAX_EXEC_TIME_OPTIMIZATION_EFFORT": "1"}, {"jax_exec_time_optimization_effort": "1.0"}),
        ({"JAX_PLATFORM_NAME": "CPU", "JAX_PLATFORMS": "cpu"}, {"jax_platform_name": "cpu", "jax_platforms": "cpu"}),
        ({"EAGER_CONSTANT_FOLDING": "1"}, {"eager_constant_folding": "True"}),
        (
            {"JAX_EXPORT_IGNORE_FORWARD_COMPATIBILIY": "1"},
            {"jax_export_ignore_forward_compatibility": "True"},
        ),
        (
            {"JAX_EXPORT_IGNORE_FORWARD_COMPATIBILIY": "1", "JAX_EXPORT_IGNORE_FORWARD_COMPATIBILITY": "0"},
            {},
        ),
        ({"JAX_LOG_COMPILES": "1", "JAX_COMPILATION_CACHE_DIR": "/nowhere"}, {}),
        ({"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}, {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}),
    ],
)
def test_variables_report_the_same_before_and_after_the_import(variables, reported):
    if "JAX_EXPLICIT_X64_DTYPES" in variables and not hasattr(jax.config, "jax_explicit_x64_dtypes"):
        pytest.skip("this release of JAX has no such option")
    assert ask(**variables) == (reported, reported)


def test_every_option_of_the_installed_jax_is_judged():
    options = set(jax_config.config._value_holders)
    assert options - set(DEFAULTS) - IRRELEVANT == set(), "new options: judge them in cachec_jax.key_settings"
    assert not set(DEFAULTS) & IRRELEVANT


def test_every_context_of_the_installed_jax_is_judged():
    assert _unknown_contexts(context_modules(jax), jax_config.config._value_holders) == {}


def test_the_table_of_defaults_is_the_one_of_the_installed_jax():
    program = "import json; from jax._src import config as c; from cachec_jax.key_settings import DEFAULTS, _text; "
    program += "print(json.dumps({n: _text(h.value) for n, h in c.config._value_holders.items() if n in DEFAULTS}))"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found == {
        name: _text(default) for name, default in defaults_of_release(jax.__version__).items() if name in found
    }


def test_everything_that_jax_traces_with_is_judged_as_changing_results():
    """JAX retraces when one of these changes; ``axis_env_state`` exists only inside of a transformation."""
    if not hasattr(jax_config, "trace_context_names"):
        pytest.skip("needs JAX 0.10.2, which says what it traces with")
    contexts = {name for name in jax_config.trace_context_names() if name in jax_config.config._value_holders}
    assert contexts - set(DEFAULTS) == set()


def test_a_variable_for_an_option_whose_default_has_changed_counts():
    """Before the import nobody knows which release is asked for: such an option must not count as unset."""
    for value in ("0", "1"):
        before, after = ask(JAX_USE_SHARDY_PARTITIONER=value)
        assert before == {"jax_use_shardy_partitioner": str(value == "1")}
        assert set(after) <= set(before)


def test_the_options_of_a_newer_jax_count_before_the_import_and_after(monkeypatch):
    """Nobody knows what they mean, nor their defaults."""
    monkeypatch.setattr(key_settings, "TRIED_RELEASES", {"jax": ">=0.1,<0.2"})
    environ = {b"JAX_OF_NEXT_YEAR": b"1", b"JAX_LOG_COMPILES": b"1"}
    assert key_settings._read_environment(environ) == {"JAX_OF_NEXT_YEAR": "1"}
    monkeypatch.setattr(jax_config, "context_of_next_year", jax_config.compute_on_context_manager, raising=False)
    assert plugin.ambient()["context_of_next_year"] == "None"


def test_the_devices_of_a_mesh_count():
    """Its text leaves them out."""
    devices = np.array([SimpleNamespace(platform="cpu", id=number) for number in range(2)])
    texts = set()
    for order in (devices, devices[::-1]):
        mesh = type("Mesh", (), {"devices": order, "__str__": lambda self: "Mesh('x': 2)"})()
        texts |= {_context_text(mesh), _context_text((mesh,))[:4]}
    assert texts >= {"Mesh('x': 2) on cpu:0, cpu:1", "Mesh('x': 2) on cpu:1, cpu:0"}


def test_an_option_changed_live_is_reported():
    before = plugin.ambient()
    jax.config.update("jax_enable_x64", True)
    try:
        assert plugin.ambient() == before | {"jax_enable_x64": "True"}
    finally:
        jax.config.update("jax_enable_x64", False)
    assert plugin.ambient() == before


def test_a_context_manager_counts_in_its_thread_only():
    import threading

    seen = []
    with jax.default_matmul_precision("float32"):
        assert plugin.ambient()["jax_default_matmul_precision"] == "float32"
        thread = threading.Thread(target=lambda: seen.append(plugin.ambient()))
        thread.start()
        thread.join()
    assert "jax_default_matmul_precision" not in seen[0]
    assert "jax_default_matmul_precision" not in plugin.ambient()


def test_a_mesh_counts():
    before = plugin.ambient()
    with jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",)):
        assert plugin.ambient() != before
    assert plugin.ambient() == before


def test_an_option_that_changes_no_result_is_not_reported():
    before = plugin.ambient()
    old = jax.config.jax_log_compiles
    jax.config.update("jax_log_compiles", not old)
    try:
        assert plugin.ambient() == before
    finally:
        jax.config.update("jax_log_compiles", old)


def test_a_variable_set_after_the_import_changes_nothing(monkeypatch):
    before = plugin.ambient()
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    assert plugin.ambient() == before
