"""``cachec_jax.aot``: a hit neither traces nor compiles, in a new process either."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import jax
import jax.export
import numpy as np
import pytest

import cachec
import cachec_jax
from cachec.errors import CachecWarning
from cachec_jax import plugin
from tests.plugins.jax_persistent_cache import reasons

X = np.linspace(-1, 1, 8, dtype="f4").reshape(2, 4)

PROGRAM = """
    import json, sys
    import numpy as np
    import cachec, cachec_jax, jax, jax.export, jax.numpy as jnp

    W = np.full((4, 4), float(sys.argv[2]), "f4")

    def function(x, scale):
        print("traced", file=sys.stderr)
        return {"y": jnp.tanh(x @ W) * scale}

    cache = cachec.Cache(sys.argv[1], log="off")
    rows = 2 if sys.argv[3] == "plain" else jax.export.symbolic_shape("rows")[0]
    spec = jax.ShapeDtypeStruct((rows, 4), "float32")
    run = cachec_jax.aot(function, spec, cache=cache, scale=jax.ShapeDtypeStruct((), "float32"))
    sizes = (2,) if sys.argv[3] == "plain" else (2, 5)
    results = [float(run(np.ones((n, 4), "f4"), scale=np.float32(3))["y"].sum()) / n for n in sizes]
    print(json.dumps(results))
"""


@pytest.fixture
def cache(tmp_path):
    return cachec.Cache(tmp_path / "store", log="off", mode="on")


@pytest.mark.parametrize("shape", ["plain", "symbolic"])
def test_a_hit_in_a_new_process_does_not_trace(tmp_path, shape):
    if shape == "symbolic":
        pytest.importorskip("flatbuffers")
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    for held, traced in (("1", True), ("1", False), ("0.5", True)):
        command = [sys.executable, path, tmp_path / "store", held, shape]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert ("traced" in done.stderr) is traced
        assert np.allclose(json.loads(done.stdout), 12 * np.tanh(4 * float(held)), rtol=1e-5)


def test_other_inputs_are_refused(cache):
    run = cachec_jax.aot(lambda x: x + 1, X, cache=cache)
    assert np.array_equal(run(X), X + 1)
    with pytest.raises(TypeError):
        run(X[:1])


def test_what_can_not_be_stored_is_jax_jit(cache):
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    with pytest.warns(CachecWarning, match="cachec_jax.aot: a program that calls Python back"):
        run = cachec_jax.aot(lambda x: jax.pure_callback(np.sin, shape, x), X, cache=cache)
    assert np.allclose(run(X), np.sin(X))
    assert "hit" not in reasons(cache)


def test_what_is_known_of_a_symbolic_dimension_counts():
    specs = []
    for constraints in ((), ("rows >= 4",)):
        shape = jax.export.symbolic_shape("rows, 4", constraints=constraints)
        specs.append(plugin.fingerprint(jax.ShapeDtypeStruct(shape, "float32")).digest)
    assert len(set(specs)) == 2
