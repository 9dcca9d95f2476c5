"""The benchmarks run, untimed and small: what they assert of outcomes holds, and each gives rows."""

from __future__ import annotations

import importlib

import pytest

from bench import harness
from bench.__main__ import BENCHMARKS
from bench.harness import Row
from tests.needs import MLIR_TOOLS, need

#: These compile, and build, for long; recording lowers a transformer, in processes that import JAX; remote and launcher
#: build with and without servers, which have tests of their own.
COSTLY = ("build", "jax", "launcher", "minilm", "recording", "remote", "torch", "warm", "xla")


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.costly) if name in COSTLY else name for name in BENCHMARKS]
)
def test_a_benchmark_runs(name, tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "SETTLE_SECONDS", 0.0)
    if name in {"mlir", "native"}:
        need(*MLIR_TOOLS)
    rows = importlib.import_module(f"bench.{name}").run(tmp_path, scale=0.002)
    assert rows
    assert all(isinstance(row, Row) and row.unit is not None and row.value >= 0 for row in rows)
    assert len({row.name for row in rows}) == len(rows)
