"""What JAX traced of earlier code is not stored under the key of the code that is there now."""

from __future__ import annotations

import asyncio
import sys
import textwrap
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import config as jax_config

import cachec
from cachec.programs.program import Program
from cachec_jax import plugin
from cachec_jax.trace_isolation import isolate_traces

#: JAX before 0.7.2 makes no context: it forgets all that it has traced before each run.
has_contexts = pytest.mark.skipif(not hasattr(jax, "make_user_context"), reason="needs a context of JAX's")

X = jax.ShapeDtypeStruct((2,), jnp.float32)

PROJECT = """
    import jax
    import jax.numpy as jnp
    import cachec
    from cachec_jax import to_stablehlo

    FACTOR = 2.0
    traced = []

    def inner(x):
        return x * 3.0

    @jax.jit
    def helper(x):
        return inner(x) * FACTOR

    def model(w, x):
        return helper(x) + w["a"]

    def lower(weights: cachec.WeightSet) -> cachec.Program:
        return to_stablehlo(model, weights.placeholders(), jax.ShapeDtypeStruct((2,), jnp.float32))

    def by_hand(n: int) -> str:
        return jax.jit(lambda x: helper(x) + n).lower(jnp.ones(2)).as_text()

    def traced_by_hand(n: int) -> str:
        return str(jax.jit(lambda x: helper(x) + n).trace(jnp.ones(2)).jaxpr)

    def computed(n: int) -> float:
        return float(helper(jnp.ones(2))[0]) + n

    async def awaited(n: int) -> str:
        return by_hand(n)
"""

SOURCES = {"a": np.ones(2, "f4")}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A module of the user's, freshly imported, and how to give it another text while the process goes on."""
    name = f"project_{tmp_path.name.replace('-', '_')}"
    path = tmp_path / f"{name}.py"
    path.write_text(textwrap.dedent(PROJECT))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__(name)
    yield module
    del sys.modules[name]


def call(cache, function, n):
    """What a stage of ``function`` gives: lowered text, or a number."""
    stage = cache.stage(tools=["jax", "jaxlib"])(function)
    if function.__name__ == "awaited":
        return asyncio.run(stage(n))
    if function.__name__ == "lower":
        program = stage(cachec.WeightSet.from_arrays(SOURCES))
        assert isinstance(program, Program)
        return program.text
    return stage(n)


STAGES = ["lower", "by_hand", "traced_by_hand", "computed", "awaited"]


@pytest.mark.sampled
@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("before", ["by a stage", "by the user"])
def test_a_changed_global_is_traced_again(cache, tmp_path, project, name, before):
    if before == "by the user":
        project.helper(jnp.ones(2))
        jax.jit(project.helper).lower(jnp.ones(2))
    old = call(cache, getattr(project, name), 1)
    project.FACTOR = 7.0
    new = call(cache, getattr(project, name), 1)
    assert new != old
    jax.clear_caches()
    oracle = cachec.Cache(tmp_path / "other", log="off", mode="on")
    assert call(oracle, getattr(project, name), 1) == new
    assert call(cache, getattr(project, name), 1) == new  # what a later process hits
    project.FACTOR = 2.0
    assert call(cache, getattr(project, name), 1) == old


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.sampled
def test_a_changed_helper_is_traced_again(cache, project, name):
    old = call(cache, getattr(project, name), 1)

    def inner(x):
        return x * 5.0

    project.inner = inner
    assert call(cache, getattr(project, name), 1) != old


@has_contexts
def test_what_the_user_traced_stays_traced(cache, project):
    """Neither emptied nor made to be traced again by what is added to a process."""
    count: list[int] = []

    @jax.jit
    def users(x):
        count.append(1)
        return jnp.tanh(project.helper(x))

    users(jnp.ones(2))
    users.lower(jnp.ones(2))
    traced = len(count)
    for n in range(3):
        call(cache, project.by_hand, n)
        users(jnp.ones(2))
        users.lower(jnp.ones(2))
    assert len(count) == traced


def test_what_is_jitted_in_a_run_works_after_it(cache):
    kept: list[object] = []

    @cache.stage(tools=["jax"], ignore=["kept"])
    def stage(n: int, kept: list[object]) -> float:
        made = jax.jit(lambda x: x * n)
        kept.append(made)
        return float(made(2.0))

    assert stage(3, kept) == 6
    assert float(kept[0](5.0)) == 15  # type: ignore[operator]
    assert np.asarray(jax.grad(kept[0])(5.0)) == 3  # type: ignore[arg-type]


def test_the_context_of_a_run_is_in_no_key(cache):
    """A stage in a stage has the key that it has outside."""

    @cache.stage(tools=["jax"])
    def inner(n: int) -> int:
        return n

    @cache.stage(tools=["jax"])
    def outer(n: int) -> str:
        return inner.key(n)

    assert outer(1) == inner.key(1)
    with plugin.running(""):
        assert plugin.ambient() == {}


@has_contexts
def test_no_two_runs_share_one_and_it_is_left():
    outside = jax_config.trace_context()
    seen = []
    for around in (isolate_traces(), isolate_traces()):
        for _ in range(2):
            with around:
                seen.append(jax_config.trace_context())
                with isolate_traces():
                    assert jax_config.trace_context() not in seen
                assert jax_config.trace_context() == seen[-1]
            assert jax_config.trace_context() == outside
    assert seen[0] == seen[1] != seen[2] == seen[3]


def test_a_hit_asks_nothing_of_jax(tmp_path):
    program = textwrap.dedent("""
        import sys
        import cachec

        cache = cachec.Cache(sys.argv[1], log="off")

        @cache.stage(tools=["jax"])
        def stage(n: int) -> int:
            return n

        stage(1)
        print("jax" in sys.modules, "cachec_jax.trace_isolation" in sys.modules)
    """)
    path = tmp_path / "program.py"
    path.write_text(program)
    import subprocess

    told = [
        subprocess.run(
            [sys.executable, path, tmp_path / "cache"], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert told == [["False", "True"], ["False", "False"]]


def another_jax(monkeypatch, **attributes: object) -> types.ModuleType:
    """A JAX without the context of 0.10.2."""
    other = types.ModuleType("jax")
    other.__dict__.update({"jit": jax.jit, "__version__": "0.99", **attributes})
    monkeypatch.setitem(sys.modules, "jax", other)
    monkeypatch.delitem(sys.modules, "jax._src.config")
    return other


@has_contexts
def test_a_release_without_that_context_has_one_made(monkeypatch):
    another_jax(monkeypatch, make_user_context=jax.make_user_context)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = []
        for _ in range(2):
            with isolate_traces():
                seen.append(jax_config.trace_context())
    assert seen[0] != seen[1]


def test_a_release_without_any_context_forgets_what_it_has_traced(monkeypatch):
    """As JAX before 0.7.2."""
    cleared: list[int] = []
    another_jax(monkeypatch, clear_caches=lambda: cleared.append(1))
    with isolate_traces():
        assert cleared == [1]


def test_jax_that_another_thread_is_importing(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    with isolate_traces():
        pass
