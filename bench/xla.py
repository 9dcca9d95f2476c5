"""JAX through XLA in a new process: what ``compile_xla`` compiled, against plain JAX with its own persistent cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from bench.harness import Row, against, interleaved, settle
from bench.processes import cpu_of_children, environment

_MODEL = """
import json, sys
from pathlib import Path
import numpy as np

def params(folder):
    folder = Path(folder)
    names = json.loads((folder / "names.json").read_text())
    return [{name: np.load(folder / f"{n}.{name}.npy", mmap_mode="r") for name in each} for n, each in enumerate(names)]

def example(p):
    width = p[0]["scale"].shape[0]
    return np.ones((128, width), "f4") * np.arange(width, dtype="f4") / width

def _normal(x, scale):
    import jax
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * scale

def net(p, x):
    import jax, jax.numpy as jnp
    length, width = x.shape
    for block in p:
        parts = jnp.split(_normal(x, block["scale"]) @ block["qkv"], 3, -1)
        heads = [each.reshape(length, 8, -1).transpose(1, 0, 2) for each in parts]
        mixed = jax.nn.softmax(heads[0] @ heads[1].transpose(0, 2, 1) / 8.0, -1) @ heads[2]
        x = x + mixed.transpose(1, 0, 2).reshape(length, width) @ block["out"]
        x = x + jax.nn.gelu(_normal(x, block["scale"]) @ block["up"]) @ block["down"]
    return x

def step(p, momentum, x):
    import jax
    value, gradient = jax.value_and_grad(lambda p: (net(p, x) ** 2).mean())(p)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return value, momentum, jax.tree.map(lambda w, m: w - 0.01 * m, p, momentum)

def inputs(function, p):
    x = example(p)
    return (x,) if function == "net" else ([{name: np.zeros_like(w) for name, w in each.items()} for each in p], x)
"""

_PLAIN = """
import sys
import model
import jax, numpy as np
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
p, name = model.params(sys.argv[2]), sys.argv[3]
result = jax.jit(getattr(model, name))(p, *model.inputs(name, p))
print(np.asarray(jax.tree.leaves(result)[0]).tobytes().hex()[:64])
"""

_OURS = """
import sys
import model
import cachec
cache = cachec.Cache(sys.argv[1], log="off", mode="on")

@cache.stage(tools=["jax", "jaxlib"])
def build(function: object, weights: cachec.WeightSet, shapes: list) -> cachec.File:
    import jax, cachec_jax
    inputs = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, "float32"), shapes, is_leaf=lambda s: isinstance(s, tuple))
    return cachec_jax.compile_xla(function, weights.placeholders(), *inputs)

p, name = model.params(sys.argv[2]), sys.argv[3]
weights, inputs = cachec.WeightSet.from_tree(p), model.inputs(name, p)
shapes = [[{n: w.shape for n, w in e.items()} for e in part] if type(part) is list else part.shape for part in inputs]
file, outcome = cache.call(build, getattr(model, name), weights, shapes)
run = cachec.link(file, weights)
result = run.numpy(*inputs) if sys.argv[5] == "numpy" else run(*inputs)
while type(result) in {list, tuple}:
    result = result[0]
import numpy as np
print(np.asarray(result).tobytes().hex()[:64])
assert outcome.reason.value == sys.argv[4], outcome
assert sys.argv[5:] != ["numpy"] or sys.argv[4] != "hit" or "jax" not in sys.modules
"""

#: What is compiled, and how the first call ends.
_FUNCTIONS = {"net": "miss:new-input", "step": "miss:new-input"}

_SHAPES = {"scale": (1,), "qkv": (1, 3), "out": (1, 1), "up": (1, 4), "down": (4, 1)}


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of layers, rounds and widths."""
    layers, width, rounds = (12, 256, 5) if scale == 1.0 else (1, 64, 1)
    for name, text in {"model": _MODEL, "plain": _PLAIN, "ours": _OURS}.items():
        (folder / f"{name}.py").write_text(text)
    for seed in (0, 1):
        _write(folder / f"p{seed}", layers, width, seed)
    settle(folder)
    return [
        row for function in _FUNCTIONS for row in _new_process(folder, function, rounds, f"{layers} layers of {width}")
    ]


def _new_process(folder: Path, function: str, rounds: int, model: str) -> list[Row]:
    def child(script: str, seed: int, *more: str) -> str:
        places = [str(folder / f"{script}.py"), str(folder / f"store-{script}"), str(folder / f"p{seed}")]
        command = [sys.executable, *places, function, *more]
        return subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stdout

    numbers = {seed: child("plain", seed) for seed in (0, 1)}

    def ours(seed: int, outcome: str, arrays: str) -> None:
        if child("ours", seed, outcome, arrays) != numbers[seed]:
            raise AssertionError(f"{function} gives other numbers than plain JAX")

    ours(0, _FUNCTIONS[function], "jax")
    tasks = {
        "plain": lambda: child("plain", 1),
        "numpy": lambda: ours(1, "hit", "numpy"),
        "jax": lambda: ours(1, "hit", "jax"),
    }
    seconds = interleaved(tasks, rounds, clock=cpu_of_children)
    name = f"compile_xla, {function}, new process, other weights, to the first result ({model}), of the processor"
    peer = "plain JAX, its own cache", seconds["plain"]
    return [
        against(f"{name}, as NumPy's arrays, without JAX", seconds["numpy"], 0.5, *peer),
        against(f"{name}, as JAX's arrays", seconds["jax"], 0, *peer),
    ]


def _write(folder: Path, layers: int, width: int, seed: int) -> None:
    folder.mkdir()
    draw = np.random.default_rng(seed)
    for number in range(layers):
        for name, factors in _SHAPES.items():
            np.save(folder / f"{number}.{name}.npy", draw.normal(0, 0.02, [f * width for f in factors]).astype("f4"))
    (folder / "names.json").write_text(str([[*_SHAPES]] * layers).replace("'", '"'))
