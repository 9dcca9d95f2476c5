"""Hits in one process: what a call costs that finds its result, and that this does not depend on weight bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import cachec
from bench.harness import Row, interleaved, private_bytes, settle, sharded_checkpoint, sparse_checkpoint

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of rounds and bytes; the test suite runs this with a small one, untimed."""
    rounds = max(3, int(2000 * scale))
    cache = cachec.Cache(folder / "cache", log="off", mode="on")

    @cache.stage
    def lower(weights: cachec.WeightSet, batch: int, seq: int) -> cachec.Program:
        specs = weights.placeholders("lower").specs
        return cachec.Program(f"program {len(specs)} {batch} {seq}", format="bench:text", manifest=weights.manifest)

    sizes = {"1 MiB": MIB, "1 GiB": int(GIB * scale), "1 TiB": int(TIB * scale)}
    files = {
        name: sparse_checkpoint(folder / f"{i}.safetensors", 200, size) for i, (name, size) in enumerate(sizes.items())
    }
    many = sharded_checkpoint(folder / "many", 2000, 100, int(TIB * scale))
    settle(folder)

    def call(weights: cachec.WeightSet) -> object:
        return lower(weights, 3, 16)

    sources = {**files, "2,000 tensors": many}
    for source in sources.values():
        call(cachec.open_weights(source))
        _, outcome = cache.call(lower, cachec.open_weights(source), 3, 16)
        assert outcome.hit, outcome
    settle(folder / "cache")  # before, the artifacts are hashed again at each hit
    opened = {name: partial(cachec.open_weights, source) for name, source in sources.items()}
    before = private_bytes()
    times = interleaved(dict.fromkeys(sources, call), rounds, fresh=opened)
    grown = private_bytes() - before
    opening = interleaved({name: lambda make=make: call(make()) for name, make in opened.items()}, rounds)
    spread = max(times[n] for n in sizes) / min(times[n] for n in sizes)
    rows = [
        Row(f"hit p50, 200 tensors, {name}", times[name] * 1e6, "µs", "<= 80", times[name] <= 80e-6) for name in sizes
    ]
    rows.append(Row("hit p50, 1 MiB to 1 TiB, slowest over fastest", spread, "x", "<= 1.5", spread <= 1.5))
    slow = times["2,000 tensors"]
    rows.append(Row("hit p50, 2,000 tensors in 100 files", slow * 1e6, "µs", "<= 250", slow <= 250e-6))
    rows.append(Row(f"private memory grown over {4 * rounds} hits", grown / 1e6, "MB", "< 5", grown < 5e6))
    rows += [
        Row(f"the same with open_weights, {name}", opening[name] * 1e6, "µs") for name in ("1 GiB", "2,000 tensors")
    ]
    rows += _against_joblib(folder, lambda: call(opened["1 GiB"]()), int(GIB * scale))
    return rows


def _against_joblib(folder: Path, hit: Callable[[], object], nbytes: int) -> list[Row]:
    import joblib
    import numpy as np

    arrays = {f"w{i}": np.ones(nbytes // 200 // 4, "f4") for i in range(200)}
    memory = joblib.Memory(folder / "joblib", verbose=0)
    cached = memory.cache(_joblib_stage)
    cached(arrays, 3, 16)
    block = 200  # hits that follow a joblib call alone would run with every processor cache cold
    times = interleaved({"cachec": lambda: [hit() for _ in range(block)], "joblib": lambda: cached(arrays, 3, 16)}, 5)
    times["cachec"] /= block
    ratio = times["joblib"] / times["cachec"]
    return [
        Row(
            "hit at 1 GiB against joblib.Memory",
            times["cachec"] * 1e6,
            "µs",
            ">= 5,000x faster",
            ratio >= 5000,
            f"joblib.Memory {times['joblib'] * 1e3:.0f} ms",
            ratio,
        )
    ]


def _joblib_stage(weights: dict[str, object], batch: int, seq: int) -> str:
    return f"program {len(weights)} {batch} {seq}"
