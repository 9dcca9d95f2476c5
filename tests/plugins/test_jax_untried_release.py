"""A JAX that this package was not tried with: used once its self-test passed, left alone otherwise; nothing raises."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cachec
import cachec_jax
from cachec.errors import CachecWarning, UnsupportedVersion
from cachec.model import Reason
from cachec_jax import hoisting, internals, plugin
from cachec_jax.self_test import self_test
from cachec_jax.unstored_program import UnstoredProgram
from tests.plugins.jax_persistent_cache import entries, kept_as_it_was, reasons

LATER, EARLIER = {"jax": ">=99,<100"}, {"jax": ">=0.1,<0.2"}
X = np.linspace(-1, 1, 8, dtype="f4").reshape(2, 4)
WEIGHTS = {"a": np.arange(16, dtype="f4").reshape(4, 4)}


@pytest.fixture(autouse=True)
def _as_it_was():
    with kept_as_it_was():
        yield
        cachec_jax.uninstall()


@pytest.fixture
def cache(tmp_path):
    return cachec.Cache(tmp_path / "store", log="off", mode="on")


def refuse() -> None:
    """A self-test that fails."""
    raise AttributeError("moved in this release")


def model(weights, x):
    return jnp.tanh(x @ weights["a"])


def build(weights: cachec.WeightSet) -> cachec.File:
    return cachec_jax.compile_xla(model, weights.placeholders(), X)


@pytest.fixture(params=["too old", "self-test failed"])
def reason(request, monkeypatch):
    """Why the installed JAX is not used."""
    monkeypatch.setattr(type(plugin), "tried_releases", LATER if request.param == "too old" else EARLIER)
    monkeypatch.setattr(type(plugin), "self_test", f"{__name__}:refuse")
    return "needs jax>=99" if request.param == "too old" else "the self-test of cachec_jax failed: .*moved"


def test_install_warns_and_steps_aside(cache, reason):
    with pytest.warns(CachecWarning, match=f"cachec_jax.install: .*{reason}.*; JAX keeps its own cache") as caught:
        assert cachec_jax.install(cache) is cache
    assert [each.filename for each in caught] == [__file__]
    assert not jax.config.jax_compilation_cache_dir
    with pytest.raises(UnsupportedVersion, match=reason):
        cachec_jax.install(cache, strict=True)


def test_jit_is_jax_jit(tmp_path, monkeypatch, reason):
    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "store"))
    held = jnp.asarray(WEIGHTS["a"])
    with pytest.warns(CachecWarning, match=f"cachec_jax.jit: .*{reason}.*; the function is what jax.jit gives"):

        @cachec_jax.jit(static_argnames="n")
        def function(x, n):
            return x @ held * n

    assert type(function) is type(jax.jit(lambda: 0))
    with warnings.catch_warnings(action="error"):
        assert np.array_equal(function(X, n=2), X @ WEIGHTS["a"] * 2)


def test_stages_run_without_the_cache(cache, monkeypatch, reason):
    stage = cache.stage(tools=["jax"])(build)
    weights = cachec.WeightSet.from_arrays(WEIGHTS)
    for _ in range(2):
        program, outcome = cache.call(stage, weights)
        assert (outcome.reason, outcome.stored) == (Reason.UNSUPPORTED_VERSION, False)
        assert np.allclose(cachec.link(program, weights).numpy(X), np.tanh(X @ WEIGHTS["a"]))


def test_a_program_that_can_not_be_stored_runs_here(cache, monkeypatch):
    """XLA's programs are made otherwise in that release."""
    monkeypatch.delattr(internals, "devices_of_executable")
    stage = cache.stage(version="1", isolated=False)(build)
    weights = cachec.WeightSet.from_arrays(WEIGHTS)
    with pytest.warns(CachecWarning, match="compile_xla can't store .*devices_of_executable"):
        program, outcome = cache.call(stage, weights)
    assert isinstance(program, UnstoredProgram)
    assert (outcome.reason, outcome.stored) == (Reason.UNSUPPORTED_VERSION, False)
    assert "devices_of_executable" in outcome.detail
    linked = cachec.link(program, weights)
    for found in (linked(X), linked.numpy(X)):
        assert np.allclose(found, np.tanh(X @ WEIGHTS["a"]))
    assert not entries(cache)


def test_what_can_not_be_lowered_for_iree_says_what_to_do(monkeypatch):
    """A program whose callbacks are not known can't be returned: it could be stored."""
    weights = cachec.WeightSet.from_arrays(WEIGHTS)
    monkeypatch.delattr(jax.stages.Lowered, "compiler_ir")
    with pytest.raises(UnsupportedVersion, match=f"JAX {jax.__version__} lowers .*compiler_ir.* docs/compatibility.md"):
        cachec_jax.to_stablehlo(model, weights.placeholders(), X)


@pytest.mark.parametrize("name", ["host_callbacks", "keepalive", "kept_var_idx"])
def test_a_record_of_jax_that_is_gone(monkeypatch, name):
    lowered = jax.jit(model).lower(WEIGHTS, X)
    others = {each: value for each, value in lowered._lowering.compile_args.items() if each != name}
    monkeypatch.setattr(lowered._lowering, "compile_args", others)
    with pytest.raises(UnsupportedVersion, match=f"needs '{name}' of what JAX records"):
        plugin.strip(lowered, cachec.WeightSet.from_arrays(WEIGHTS))


def test_a_moved_jit_is_jax_jit(cache, monkeypatch):
    cachec_jax.install(cache)
    monkeypatch.setattr(hoisting, "hoist_constants", lambda function, info: info.options_of_next_year)
    with pytest.warns(CachecWarning, match="JAX has changed what jax.jit is made of.*options_of_next_year"):
        function = cachec_jax.jit(lambda x: x + 1)
    assert np.array_equal(function(X), X + 1)
    with pytest.raises(TypeError):
        cachec_jax.jit(function, no_such_option=1)


@pytest.mark.long
def test_a_newer_release_is_used_after_the_self_test(cache, monkeypatch):
    monkeypatch.setattr(type(plugin), "tried_releases", EARLIER)
    with warnings.catch_warnings(action="error"):
        cachec_jax.install(cache, min_compile_time=0, strict=True)
    for _ in range(2):
        assert np.array_equal(jax.jit(lambda x: x * 3)(X), X * 3)
        jax.clear_caches()
    assert "hit" in reasons(cache)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (internals.compilation_cache, "get_file_cache"),
        (internals, "devices_of_executable"),
        (internals, "make_lowering"),
        (internals, "run_jit"),
        (internals.config, "compute_on_context_manager"),
    ],
)
def test_the_self_test_finds_what_has_moved(tmp_path, monkeypatch, owner, name):
    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(owner, name)
    with warnings.catch_warnings(action="ignore"), pytest.raises((AssertionError, AttributeError, UnsupportedVersion)):
        self_test()
