"""Plain ``jax.jit``: JAX's own persistent cache against ``cachec_jax.install()`` and ``cachec_jax.jit``."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.harness import Row, against, interleaved, settle
from bench.processes import cpu_of_children, environment

#: argv: where programs are kept, the file of weights, how many layers, seed. The compile takes more than JAX's least
#: second.
_MODEL = """
import hashlib, sys
{before}
import numpy as np
import jax
import jax.numpy as jnp
{after}
width, inner, length, heads, layers = 512, 2048, 128, 8, int(sys.argv[3])
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

shapes = {{"first": (width,), "qkv": (width, 3 * width), "out": (width, width), "second": (width,),
          "up": (width, inner), "down": (inner, width)}}
ends = np.cumsum([np.prod(shape) for shape in shapes.values()])

def load(seed):
    \"\"\"The layers' weights; each seed's differ in one number.\"\"\"
    flat = np.load(sys.argv[2], mmap_mode="c")[: layers * ends[-1]].reshape(layers, -1)
    flat[-1, -1] = seed
    rows = [np.split(row, ends[:-1]) for row in flat]
    return [{{n: part.reshape(shape) for (n, shape), part in zip(shapes.items(), row)}} for row in rows]

x = np.linspace(-1, 1, length * width, dtype="f4").reshape(length, width)
params = load(int(sys.argv[4]))
{run}
{last}
"""

#: In a tree, as most people write them.
_ARGUMENTS = "print(hashlib.sha256(np.asarray(jax.jit(net)(params, x)).tobytes()).hexdigest())"
_CLOSED = "print(hashlib.sha256(np.asarray({jit}(lambda x: net(params, x))(x)).tobytes()).hexdigest())"

#: Other weights in one process, to the first result: functions that close over them, a program linked with them.
_TUNED = """
import gc, statistics, time

@cache.stage(tools=["jax", "jaxlib"])
def build(function: object, weights: cachec.WeightSet, shape: tuple) -> cachec.File:
    return cachec_jax.compile_xla(function, weights.placeholders(), jax.ShapeDtypeStruct(shape, "float32"))

def linked(params):
    weights = cachec.WeightSet.from_tree(params)
    return cachec.link(build(net, weights, x.shape), weights)(x)

arguments = jax.jit(net)
ways = {{"plain": lambda p: jax.jit(lambda x: net(p, x))(x),
        "hoisted": lambda p: cachec_jax.jit(lambda x: net(p, x))(x),
        "linked": linked, "arguments": lambda p: arguments(p, x)}}
times = {{name: [] for name in ways}}
for seed in range(int(sys.argv[4]) + 1):
    params, results = load(seed), set()
    jax.block_until_ready(jax.tree.map(jnp.asarray, params))  # its pages are in memory
    for name, way in ways.items():
        gc.collect()
        started = time.process_time()
        results.add(np.asarray(way(params)).tobytes())
        times[name].append(time.process_time() - started)
    assert len(results) == 1, "the numbers differ"
print(*(statistics.median(each[1:]) for each in times.values()))
"""

_OWN = 'jax.config.update("jax_compilation_cache_dir", sys.argv[1])'
_OURS = 'import cachec, cachec_jax\ncache = cachec_jax.install(cachec.Cache(sys.argv[1], log="off", mode="on"))'
_COUNTS = "print({reason.kind: count for reason, count in cache.events.counts.items()}, file=sys.stderr)"

#: Numbers of a layer's weights.
_LAYER = 2 * 512 + 12 * 512**2


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of rounds and layers."""
    layers = max(1, int(12 * scale))
    weights = folder / "weights.npy"
    np.save(weights, 0.02 * np.random.default_rng(0).standard_normal(layers * _LAYER, "f4"))
    settle(folder)
    rows = [_arguments(folder, weights, layers, max(1, int(15 * scale)))]
    half = max(1, layers // 2)
    rows += _closed_over(folder, weights, half, max(1, int(5 * scale)))
    return [*rows, *_tuned(folder, weights, half, max(1, int(5 * scale)))]


def _megabytes(layers: int) -> str:
    return f"{layers * _LAYER * 4 / 1e6:.0f} MB of weights"


def _script(path: Path, **parts: str) -> str:
    path.write_text(_MODEL.format(**parts))
    return str(path)


def _child(script: str, store: Path, weights: Path, layers: int, seed: int) -> tuple[str, str]:
    command = [sys.executable, script, str(store), str(weights), str(layers), str(seed)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    return done.stdout, done.stderr


def _arguments(folder: Path, weights: Path, layers: int, rounds: int) -> Row:
    scripts = {"own": _script(folder / "own.py", before="", after=_OWN, run=_ARGUMENTS, last=""),
               "ours": _script(folder / "ours.py", before=_OURS, after="", run=_ARGUMENTS, last=_COUNTS)}  # fmt: skip
    numbers, said = set(), {}

    def process(name: str) -> None:
        number, said[name] = _child(scripts[name], folder / name, weights, layers, 0)
        numbers.add(number)

    times = interleaved({name: lambda name=name: process(name) for name in scripts}, rounds, clock=cpu_of_children)
    assert len(numbers) == 1, "the numbers differ"
    assert said["ours"].startswith("{'hit': "), said["ours"]
    assert "miss" not in said["ours"], said["ours"]
    ratio, most = times["ours"] / times["own"], 1.05
    peer = f"JAX's own persistent cache {times['own']:.2f} s CPU"
    what = "plain jax.jit, weights as arguments, install(), new process, hit"
    return Row(what, times["ours"], "s CPU", f"<= {most}x, numbers equal", ratio <= most, peer, ratio)


def _closed_over(folder: Path, weights: Path, layers: int, rounds: int) -> Iterator[Row]:
    """Each process has a seed of its own, which JAX's own cache has never seen."""
    closed = {name: _CLOSED.format(jit=jit) for name, jit in (("own", "jax.jit"), ("ours", "cachec_jax.jit"))}
    scripts = {"own": _script(folder / "c-own.py", before="", after=_OWN, run=closed["own"], last=""),
               "ours": _script(folder / "c-ours.py", before=_OURS, after="", run=closed["ours"], last=_COUNTS),
    }  # fmt: skip
    stores = {name: folder / f"closed-{name}" for name in scripts}
    seeds = {name: itertools.count() for name in scripts}
    numbers: dict[str, list[str]] = {name: [] for name in scripts}
    sizes: dict[str, list[int]] = {name: [] for name in scripts}
    said = []

    def process(name: str) -> None:
        number, words = _child(scripts[name], stores[name], weights, layers, next(seeds[name]))
        numbers[name].append(number)
        sizes[name].append(sum(file.stat().st_size for file in stores[name].rglob("*") if file.is_file()))
        said.append((name, words))

    times = interleaved({name: lambda name=name: process(name) for name in scripts}, rounds, clock=cpu_of_children)
    assert numbers["own"] == numbers["ours"], "the numbers differ"
    hits = [words for name, words in said if name == "ours"][1:]
    assert all(words.startswith("{'hit': ") and "miss" not in words for words in hits), hits
    ratio, most = times["ours"] / times["own"], 0.35
    peer = f"plain jax.jit, JAX's own persistent cache, which misses, {times['own']:.2f} s CPU"
    what = f"cachec_jax.jit, {_megabytes(layers)} closed over, other seed, new process, to the first result"
    yield Row(what, times["ours"], "s CPU", f"<= {most}x, numbers equal", ratio <= most, peer, ratio)
    grown = {name: (each[-1] - each[0]) / max(1, len(each) - 1) / 1e6 for name, each in sizes.items()}
    what = "cachec_jax.jit, other seed: what the store grows by, the log of outcomes included"
    peer = f"plain jax.jit, JAX's own persistent cache {grown['own']:.2f} MB"
    yield Row(what, max(grown["ours"], 0.0), "MB", "< 0.1", grown["ours"] < 0.1, peer)


def _tuned(folder: Path, weights: Path, layers: int, rounds: int) -> list[Row]:
    script = _script(folder / "tuned.py", before=_OURS, after="", run=_TUNED.format(), last="")
    said, _ = _child(script, folder / "tuned", weights, layers, rounds)
    plain, hoisted, linked, arguments = map(float, said.split())
    what = f"other weights, same process, to the first result, of the processor ({_megabytes(layers)})"
    floor = "plain jax.jit, weights as arguments, compiled before"
    return [
        against(f"cachec_jax.jit, {what}", hoisted, 0.35, "plain jax.jit, weights closed over", plain),
        against(f"cachec.link, {what}", linked, 0, floor, arguments),
    ]
