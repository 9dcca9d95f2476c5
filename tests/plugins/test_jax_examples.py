"""``examples/jax_vit`` and ``examples/jax_libraries``, run; checkpoints of JAX's libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import cachec
from cachec import Reason
from cachec.weights import WeightSet, open_weights
from cachec_jax import compile_xla

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.costly
@pytest.mark.timeout(1200)
def test_the_vit(tmp_path):
    """Cold, warm, tuned, in another checkout; by XLA and by IREE. The script itself compares with plain JAX.

    `make test-long` has the same of the demo of minilm.
    """
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "jax_vit" / "demo.py", tmp_path / "demo"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(ran.stdout.splitlines()) == 13


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "library", ["linen", *(pytest.param(name, marks=pytest.mark.costly) for name in ("nnx", "equinox"))]
)
def test_a_library_s_module_trained_and_used(tmp_path, library):
    """Other weights compile nothing, and the numbers are plain JAX's."""
    path = EXAMPLES / "jax_libraries" / f"{library}_mlp.py"
    # JAX stores what took a second to compile, which on a busy machine is anything; what is named is always stored.
    environ = {**os.environ, "CACHEC_DIR": str(tmp_path), "CACHEC_LOG": "off",
               "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e6"}  # fmt: skip

    def run(*options: str) -> Any:
        command = [sys.executable, path, *options]
        return json.loads(subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout)

    def entries() -> int:
        return len(list(cachec.Cache(tmp_path, log="off").store.entries()))

    first = run("--seed", "0")
    stored = entries()
    assert stored == first["outcomes"]["miss:first-run"] > 0
    tuned, plain = run("--seed", "1"), run("--seed", "1", "--plain")
    assert entries() == stored
    assert tuned["outcomes"].pop("hit") == stored
    assert plain.pop("outcomes") == {}
    assert first["outcomes"].keys() == {"miss:first-run"}
    assert tuned.pop("outcomes") == {}, "what JAX does not store counts nowhere"
    assert tuned == plain


def forward(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["layers"][0]["w"]) + p["b"]


def params(seed: int) -> Any:
    draw = np.random.default_rng(seed)
    return {"layers": [{"w": draw.normal(size=(4, 4)).astype("f4")}], "b": draw.normal(size=4).astype("f4")}


def build(weights: cachec.WeightSet) -> cachec.File:
    return compile_xla(forward, weights.placeholders(), jax.ShapeDtypeStruct((2, 4), "float32"))


@pytest.mark.long
def test_a_checkpoint_of_orbax_is_what_orbax_restores(tmp_path):
    """Its arrays are compressed in a database, so no part of its files is a weight; what it restores is not copied."""
    checkpoint = pytest.importorskip("orbax.checkpoint")
    cache = cachec.Cache(tmp_path / "store", log="off", mode="on")
    stage = cache.stage(tools=["jax", "jaxlib"])(build)
    cache.call(stage, WeightSet.from_tree(params(0)))
    with checkpoint.StandardCheckpointer() as saver:
        saver.save(tmp_path / "orbax", params(1))
    restored = checkpoint.StandardCheckpointer().restore(tmp_path / "orbax", params(0))
    weights = WeightSet.from_tree(restored)
    file, outcome = cache.call(stage, weights)
    assert outcome.reason is Reason.HIT
    x = np.ones((2, 4), "f4")
    expected = np.asarray(jax.jit(forward)(params(1), x))
    assert np.asarray(cachec.link(file, weights)(x)).tobytes() == expected.tobytes()
    assert np.shares_memory(weights["['b']"].read(), restored["b"])


def test_a_checkpoint_of_safetensors_is_mapped(tmp_path):
    cache = cachec.Cache(tmp_path / "store", log="off", mode="on")
    stage = cache.stage(tools=["jax", "jaxlib"])(build)
    stage(
        WeightSet.from_tree(params(0)).rename({"['b']": "b", "['layers'][0]['w']": "layers.0.w"}).tree(like=params(0))
    )

    save_file({"b": params(1)["b"], "layers.0.w": params(1)["layers"][0]["w"]}, tmp_path / "m.safetensors")
    weights = open_weights(tmp_path / "m.safetensors").tree(like=params(0))
    file, outcome = cache.call(stage, weights)
    assert outcome.reason is Reason.HIT
    x = np.ones((2, 4), "f4")
    expected = np.asarray(jax.jit(forward)(params(1), x))
    assert np.asarray(cachec.link(file, weights)(x)).tobytes() == expected.tobytes()
    assert not weights["b"].read().flags.owndata
