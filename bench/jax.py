"""Plain ``jax.jit`` in a new process: JAX's own persistent cache, and ``cachec_jax.install()`` in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.harness import Row, interleaved
from bench.processes import cpu_of_children, environment

#: Parameters are arguments in a tree, as most people write them. The compile takes more than JAX's least second.
_MODEL = """
import hashlib, sys
{before}
import numpy as np
import jax
import jax.numpy as jnp
{after}
width, inner, length, heads, layers = 512, 2048, 128, 8, int(sys.argv[2])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

def norm(x, scale):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * scale

def block(p, x):
    parts = jnp.split(norm(x, p["first"]) @ p["qkv"], 3, -1)
    q, k, v = (part.reshape(length, heads, -1).transpose(1, 0, 2) for part in parts)
    seen = jax.nn.softmax(q @ k.transpose(0, 2, 1) / 8.0, -1) @ v
    x = x + seen.transpose(1, 0, 2).reshape(length, width) @ p["out"]
    return x + jax.nn.gelu(norm(x, p["second"]) @ p["up"]) @ p["down"]

def net(params, x):
    for p in params:
        x = block(p, x)
    return x

rng = np.random.default_rng(0)
shapes = {{"first": (width,), "qkv": (width, 3 * width), "out": (width, width), "second": (width,),
          "up": (width, inner), "down": (inner, width)}}
params = [{{name: rng.standard_normal(shape, "f4") * 0.02 for name, shape in shapes.items()}} for _ in range(layers)]
x = rng.standard_normal((length, width), "f4")
print(hashlib.sha256(np.asarray(jax.jit(net)(params, x)).tobytes()).hexdigest())
{last}
"""

_OWN = 'jax.config.update("jax_compilation_cache_dir", sys.argv[1])'
_OURS = 'import cachec, cachec_jax\ncache = cachec_jax.install(cachec.Cache(sys.argv[1], log="off", mode="on"))'
_COUNTS = "print({reason.kind: count for reason, count in cache.events.counts.items()}, file=sys.stderr)"


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of rounds and layers."""
    layers = str(max(1, int(12 * scale)))
    scripts = {"own": _MODEL.format(before="", after=_OWN, last=""),
               "ours": _MODEL.format(before=_OURS, after="", last=_COUNTS)}  # fmt: skip
    for name, text in scripts.items():
        (folder / f"{name}.py").write_text(text)
    numbers, said = set(), {}

    def process(name: str) -> None:
        command = [sys.executable, str(folder / f"{name}.py"), str(folder / name), layers]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
        numbers.add(done.stdout)
        said[name] = done.stderr

    times = interleaved(
        {name: lambda name=name: process(name) for name in scripts}, max(1, int(15 * scale)), clock=cpu_of_children
    )
    assert len(numbers) == 1, "the numbers differ"
    assert said["ours"].startswith("{'hit': "), said["ours"]
    assert "miss" not in said["ours"], said["ours"]
    ratio, most = times["ours"] / times["own"], 1.05
    peer = f"JAX's own persistent cache {times['own']:.2f} s CPU"
    what = "plain jax.jit, weights as arguments, install(), new process, hit"
    return [Row(what, times["ours"], "s CPU", f"<= {most}x, numbers equal", ratio <= most, peer, ratio)]
