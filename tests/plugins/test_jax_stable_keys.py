"""The key of unchanged code is the same in every process: whatever the seed of hashes, with and without files of
bytecode, just after an edit that does not count."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_LAYERS = '''"""Layers."""
import dataclasses
import enum
import functools
from functools import partial

import jax
import jax.numpy as jnp

ACTIVATIONS = {"relu": jax.nn.relu, "gelu": lambda x: jax.nn.gelu(x), "id": lambda x: x}
NAMES = {"b", "a", "c", "dd", "eee"}
MIXED = frozenset({jnp.float32, jnp.bfloat16, "x", 3, (1, "a")})
FUNCTIONS = {jnp.sin, jnp.cos, jnp.tanh}
LAMBDAS = {lambda: 1, lambda: 2, lambda: 3}
INITIALIZER = jax.nn.initializers.lecun_normal()
SPEC = jax.sharding.PartitionSpec("data", None)

scale_tree = lambda t: jax.tree.map(lambda x: x * 2, t)

class Act(enum.Enum):
    A = 1
    B = "b"

@dataclasses.dataclass(frozen=True)
class Config:
    """Config."""
    width: int = 3
    act: Act = Act.A
    tags: frozenset = frozenset({"q", "w", "e"})
    fn: object = dataclasses.field(default_factory=lambda: jnp.tanh)

CONFIG = Config()

@jax.tree_util.register_pytree_node_class
class Pair:
    """A pair."""
    def __init__(self, a, b):
        self.a, self.b = a, b
    def tree_flatten(self):
        return (self.a, self.b), None
    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)

class Held:
    def __init__(self, a): self.a = a
jax.tree_util.register_pytree_node(Held, lambda m: ((m.a,), None), lambda aux, ch: Held(*ch))

@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Data:
    """Data."""
    x: jax.Array
    y: float = dataclasses.field(metadata=dict(static=True), default=1.0)

@jax.custom_vjp
def clip(x):
    """Clip."""
    return jnp.clip(x, -1, 1)
clip.defvjp(lambda x: (clip(x), x), lambda res, g: (g * jnp.where(jnp.abs(res) < 1, 1.0, 0.0),))

@partial(jax.custom_vjp, nondiff_argnums=(1,))
def scaled(x, k):
    """Scaled."""
    return x * k
scaled.defvjp(lambda x, k: (scaled(x, k), None), lambda k, r, g: (g * k,))

@jax.custom_jvp
def soft(x):
    """Soft."""
    return jnp.log1p(jnp.exp(x))
@soft.defjvp
def soft_jvp(p, t):
    return soft(*p), t[0] * jax.nn.sigmoid(p[0])

@jax.checkpoint
def block(x):
    """Block."""
    return soft(scaled(x, 2.0))

@partial(jax.jit, static_argnames=("n",))
def helper(x, n=2):
    """Help."""
    return x * n

batched = jax.vmap(lambda x: block(x) + 1)
both = jax.jit(jax.vmap(jax.grad(lambda x: block(x).sum())))
jitted = [jax.jit(lambda x: x + 1), jax.jit(lambda x: x + 1), jax.jit(lambda x: x + 2)]
composed = functools.reduce(lambda f, g: (lambda x: f(g(x))), [lambda x: x + 1, lambda x: x * 2, jnp.sin])

def run(n):
    """Run."""
    x = jnp.ones(n)
    y = jax.tree.map(lambda v: v * 2, Held(x)).a + Data(x).x + scale_tree(Pair(x, x)).a + clip(x) + helper(x)
    y = y + batched(x) + both(x) + composed(x) + jitted[0](x) + jitted[2](x) + ACTIVATIONS["gelu"](x)
    z = jax.lax.scan(lambda c, v: (c + v, c * v), 0.0, y)[1]
    counted = sorted(NAMES), CONFIG.width, len(MIXED), len(FUNCTIONS), len(LAMBDAS), str(SPEC), INITIALIZER is None
    return [float(v) for v in z], repr(counted)
'''
_STAGES = """
import json, sys
import cachec
import layers
cache = cachec.Cache()

@cache.stage
def stage(n):
    return layers.run(n)

@cache.stage
def lazy(n):
    import layers
    return layers.run(n)

outcomes = [each.call(3)[1] for each in (stage, lazy)] if sys.argv[1:] else []
parts = [f"{part.label} {part.digest}" for each in (stage, lazy) for part in each._request((3,), {}).parts()]
print(json.dumps([[(outcome.reason.value, outcome.detail) for outcome in outcomes], parts]))
"""


#: After 12 processes each combination of what differs between two of them has been there.
@pytest.mark.long
def test_every_process_has_the_same_digests(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    layers = tmp_path / "layers.py"
    layers.write_text(_LAYERS)
    (tmp_path / "stages.py").write_text(_STAGES)
    env = {**os.environ, "CACHEC_DIR": str(tmp_path / "store"), "CACHEC_LOG": "off", "JAX_PLATFORMS": "cpu"}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    found = []
    for number in range(12):
        if number % 2:
            shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        if number % 4 < 2:  # just before the process begins
            layers.write_text(layers.read_text().replace('"""Cl', '"""Another text\n    of more lines: Cl'))
        words = [sys.executable, *(["-B"] if number % 3 == 1 else []), "stages.py", *(["call"] if number < 3 else [])]
        seed = {**env, "PYTHONHASHSEED": str(number % 3)}
        run = subprocess.run(words, cwd=tmp_path, env=seed, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        outcomes, parts = json.loads(run.stdout)
        found.append(parts)
        assert all(reason == ("hit" if number else "miss:first-run") for reason, _ in outcomes), (number, outcomes)
        assert [each for each in parts if each not in found[0]] == [], number
        assert parts == found[0]
