"""MLIR to native code, a perceptron of 33.5 MB: weights inside the module against undefined symbols."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import cachec
from bench.harness import Row, settle

EXAMPLE = Path(__file__).parents[1] / "examples" / "native"
TOOLS = ("mlir-opt-19", "mlir-translate-19", "clang-19")
BATCH = 8

#: Runs commands one after the other and prints the seconds and the largest resident set (KiB) of any. In a small
#: process of its own, as a child's peak counts from the size of the process that started it (getrusage(2)).
_MEASURE = """
import json, os, sys, time
started, peak = time.perf_counter(), 0
for command in json.loads(sys.argv[1]):
    pid = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"{command[0]} failed")
    peak = max(peak, usage.ru_maxrss)
print(json.dumps([time.perf_counter() - started, peak]))
"""


class Cost(NamedTuple):
    """What a pipeline took. peak: bytes, of the largest of its processes."""

    seconds: float
    peak: int


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the weight bytes. Raises RuntimeError, naming them, where the tools are not installed."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise RuntimeError(f"bench.native needs {', '.join(missing)} (Debian: mlir-19-tools clang-19)")
    sys.path.insert(0, str(EXAMPLE))
    os.environ["CACHEC_DIR"] = str(folder / "cache")
    os.environ["CACHEC_LOG"] = "off"
    try:
        import mlp

        return _rows(folder, scale, mlp)
    finally:
        del os.environ["CACHEC_DIR"], os.environ["CACHEC_LOG"]
        sys.path.remove(str(EXAMPLE))
        sys.modules.pop("mlp_stages", None)  # its cache is in this folder


def _rows(folder: Path, scale: float, mlp: ModuleType) -> list[Row]:
    width = max(8, int(1024 * math.sqrt(scale)))
    files = [_checkpoint(folder / f"{seed}.safetensors", seed, width) for seed in range(2)]
    weights = cachec.open_weights(files[0])
    arrays = {name: weight.read() for name, weight in weights.items()}
    (folder / "inside.mlir").write_text(mlp.inline_mlp(arrays, BATCH))
    (folder / "outside.mlir").write_text(mlp.mlp(weights.specs, BATCH))
    outside = [_cost(folder / "outside.mlir")]
    inside = _cost(folder / "inside.mlir")
    outside += [_cost(folder / "outside.mlir") for _ in range(2)]
    seconds = statistics.median(each.seconds for each in outside)
    peak = max(each.peak for each in outside)
    faster, smaller = inside.seconds / seconds, inside.peak / peak
    swap = _swap(folder, files)
    share = swap / inside.seconds
    size = f"{weights.nbytes / 1e6:.1f} MB MLP"
    return [
        Row(
            f"{size}, mlir-opt to clang, weights outside",
            seconds,
            "s",
            ">= 50x less than inside",
            faster >= 50,
            f"inside {inside.seconds:.2f} s",
            faster,
        ),
        Row(
            f"{size}, mlir-opt to clang, weights outside: peak memory",
            peak / 1e6,
            "MB",
            ">= 10x less than inside",
            smaller >= 10,
            f"inside {inside.peak / 1e6:.0f} MB",
            smaller,
        ),
        Row(
            f"{size}, new weights: opened, hits of every stage, linked",
            swap * 1e3,
            "ms",
            "<= 1% of the compile inside",
            share <= 0.01,
            f"inside {inside.seconds:.2f} s",
            1 / share,
        ),
    ]


def _cost(module: Path) -> Cost:
    """The three tools on a module, as ``cachec_native.pipeline`` calls them."""
    import cachec_native as native

    lowered, ir, library = (str(module.with_suffix(suffix)) for suffix in (".llvm.mlir", ".ll", ".so"))
    commands = [
        [TOOLS[0], str(module), *native.PASSES, "-o", lowered],
        [TOOLS[1], "--mlir-to-llvmir", lowered, "-o", ir],
        [TOOLS[2], "-march=native", "-O2", "-fPIC", "-shared", "-Wno-override-module", "-x", "ir", ir, "-o", library],
    ]
    measured = [sys.executable, "-I", "-S", "-c", _MEASURE, json.dumps(commands)]
    done = subprocess.run(measured, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{module.name}: {done.stderr[-2000:]}")
    seconds, peak = json.loads(done.stdout)
    return Cost(seconds, peak * 1024)


def _swap(folder: Path, files: list[Path]) -> float:
    """Seconds from a file of new weights to a library that runs with them; checked against numpy."""
    import numpy as np
    from mlp_stages import build, describe, lower, translate

    def stages(weights: cachec.WeightSet) -> Any:
        return build(translate(lower(describe(weights, BATCH))))

    cachec.link(stages(cachec.open_weights(files[0])), cachec.open_weights(files[0]))
    settle(folder)
    stages(cachec.open_weights(files[1]))
    times = []
    for number in range(9):
        started = time.perf_counter()
        weights = cachec.open_weights(files[number % 2])
        linked = cachec.link(stages(weights), weights)
        times.append(time.perf_counter() - started)
        assert linked.copied == ()
        kind = [("float32", (BATCH, weights["w1"].shape[0]))]
        x = np.ones(kind[0][1], "f4")
        found = linked.function("mlp", inputs=kind, outputs=kind)(x)
        w = {name: weight.read() for name, weight in weights.items()}
        want = np.maximum(x @ w["w1"] + w["b1"], 0) @ w["w2"]
        np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-3)
    assert all(outcome.hit for outcome in _outcomes(weights)), "new weights were to hit"
    return statistics.median(times)


def _outcomes(weights: cachec.WeightSet) -> list[cachec.Outcome]:
    from mlp_stages import build, cache, describe, lower, translate

    program, first = cache.call(describe, weights, BATCH)
    program, second = cache.call(lower, program)
    program, third = cache.call(translate, program)
    return [first, second, third, cache.call(build, program)[1]]


def _checkpoint(path: Path, seed: int, width: int) -> Path:
    import numpy as np
    from safetensors.numpy import save_file

    r = np.random.default_rng(seed)
    shapes = {"w1": (width, 4 * width), "b1": (4 * width,), "w2": (4 * width, width)}
    save_file({name: r.normal(0, 0.02, shape).astype("f4") for name, shape in shapes.items()}, path)
    return path
