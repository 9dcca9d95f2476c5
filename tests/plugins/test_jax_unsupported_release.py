"""Another JAX than the plugin knows: stages run without the cache, and the outcome says why."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import config as jax_config
from jax._src.lax import lax

import cachec
from cachec.errors import CacheMissError
from cachec.events import read_log
from cachec_jax import plugin

#: A range that this JAX is too old for.
LATER = {"jax": ">=99,<100"}
NEEDS = f"cachec_jax needs jax>=99, found {jax.__version__}"


@pytest.fixture
def cache(tmp_path):
    return cachec.Cache(dir=tmp_path / "store")


def stages(cache: cachec.Cache):
    """One that the plugin speaks for by its tools, by its argument, and by its result alone."""

    @cache.stage(tools=["jax"], name="tools")
    def tools(n: int) -> int:
        return n

    @cache.stage(name="argument")
    def argument(x: object) -> float:
        return float(np.asarray(x).sum())  # no operation of JAX, of which something is missing here

    @cache.stage(name="result", version="1")
    def result(n: int):
        from jax import numpy as own

        return own.ones(n)

    return (tools, 1), (argument, jnp.ones(2)), (result, 2)


@pytest.mark.parametrize("number", range(3))
def test_another_release_runs_without_the_cache(cache, monkeypatch, number):
    monkeypatch.setattr(type(plugin), "tried_releases", LATER)
    stage, value = stages(cache)[number]
    for _ in range(2):
        found, outcome = cache.call(stage, value)
        assert (outcome.reason.value, outcome.detail, outcome.stored) == ("bypass:unsupported-version", NEEDS, False)
        assert jnp.sum(jnp.asarray(found)) == stage.uncached(value) if number != 2 else found.shape == (2,)
    logged = list(read_log(cache.settings.dir))
    assert [(each.reason, each.detail) for each in logged] == [(outcome.reason, NEEDS)] * 2


def test_what_asks_about_it_says_so(cache, monkeypatch):
    monkeypatch.setattr(type(plugin), "tried_releases", LATER)
    (stage, value), *_ = stages(cache)
    assert stage.why(value) == f"bypass:unsupported-version: {NEEDS}"
    (stage, value), *_ = stages(cachec.Cache(dir=cache.settings.dir, mode="require"))
    with pytest.raises(CacheMissError, match="bypass:unsupported-version: cachec_jax needs"):
        stage(value)


def test_an_async_stage(cache, monkeypatch):
    import asyncio

    monkeypatch.setattr(type(plugin), "tried_releases", LATER)

    @cache.stage(tools=["jax"])
    async def awaited(n: int) -> int:
        return n

    assert asyncio.run(awaited(3)) == 3
    assert [each.detail for each in read_log(cache.settings.dir)] == [NEEDS]


@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [
        (type(jax_config.config), "_value_holders", 0),
        (jax_config, "mesh_context_manager", 0),
        (jax_config, "abstract_mesh_context_manager", 1),
        (jax_config, "compute_on_context_manager", 1),
        (jax_config, "xla_metadata_context_manager", 0),
        (sys.modules["jax._src"], "config", 0),
        (jax.stages, "Lowered", 1),
        (jax.dtypes, "prng_key", 2),
    ],
)
def test_what_is_gone_is_a_bypass(cache, monkeypatch, owner, name, number):
    stage, value = stages(cache)[number]
    if owner is type(jax_config.config):
        monkeypatch.delattr(jax_config.config, name)
    else:
        monkeypatch.delattr(owner, name)
    found, outcome = cache.call(stage, value)
    assert outcome.reason.value == "bypass:unsupported-version"
    tried = ", ".join(name + releases for name, releases in plugin.tried_releases.items())
    assert outcome.detail.startswith(f"cachec_jax was tried with {tried}, and met AttributeError: ")
    assert name in outcome.detail
    assert found is not None


@pytest.mark.long
def test_a_result_that_can_not_be_made_again(cache, monkeypatch):
    weakly_typed = jnp.asarray(1.0) * 2

    @cache.stage(name="weak", version="1", ignore=["array"])
    def weak(array: object) -> object:
        return array

    weak(weakly_typed)
    monkeypatch.delattr(lax, "_convert_element_type")
    found, outcome = cache.call(weak, weakly_typed)
    assert (float(found), outcome.reason.value) == (2.0, "miss:row-corrupt")
    assert "_convert_element_type" in outcome.detail
