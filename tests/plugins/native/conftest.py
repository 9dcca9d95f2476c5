"""The example's modules, and the tools that its pipeline needs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import cachec
import cachec_native as native
from cachec.weights import WeightSet
from tests.needs import MLIR_TOOLS, need

EXAMPLE = Path(__file__).parents[3] / "examples" / "native"
BATCH = 4


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    need(*MLIR_TOOLS)


@pytest.fixture(scope="session")
def mlp() -> Any:
    """The example's module ``mlp``."""
    return example()


def example() -> Any:
    """The same without pytest."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        import mlp

        return mlp
    finally:
        sys.path.remove(str(EXAMPLE))


def arrays(seed: int, width: int = 16, hidden: int = 48) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    return {
        "w1": r.normal(size=(width, hidden)).astype("f4"),
        "b1": r.normal(size=hidden).astype("f4"),
        "w2": r.normal(size=(hidden, width)).astype("f4"),
    }


def expected(w: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ w["w1"] + w["b1"], 0) @ w["w2"]


X = np.linspace(-1, 1, BATCH * 16, dtype="f4").reshape(BATCH, 16)


def call(linked: Any, x: np.ndarray = X) -> np.ndarray:
    kind = [("float32", x.shape)]
    return linked.function("mlp", inputs=kind, outputs=kind)(x)


def compiled(text: str, weights: WeightSet, **options: Any) -> cachec.File:
    """A module through the three tools, uncached."""
    program = cachec.Program(text, format="mlir:text", manifest=weights.manifest)
    return native.to_library(native.to_llvm_ir(native.to_llvm_dialect(program)), **options)


def stages(cache: cachec.Cache, text: Callable[..., str]) -> tuple[Any, Any]:
    """For the conformance suite; here, as all of a module with a test class would be code of the stages."""

    @cache.stage(version="1")
    def lower(weights: cachec.WeightSet, variant: float) -> cachec.Program:
        source = text(weights.placeholders().specs, BATCH, threshold=variant)
        return cachec.Program(source, format="mlir:text", manifest=weights.manifest)

    @cache.stage
    def build(program: cachec.Program) -> cachec.File:
        return native.to_library(native.to_llvm_ir(native.to_llvm_dialect(program)))

    return lower, build


@pytest.fixture(scope="session")
def library(mlp: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> cachec.File:
    """The perceptron, its weights undefined, in a file that lives as long as the tests."""
    weights = WeightSet.from_arrays(arrays(0))
    text = mlp.mlp(weights.specs, BATCH)
    program = cachec.Program(text, format="mlir:text", manifest=weights.manifest)
    cache = cachec.Cache(tmp_path_factory.mktemp("library"), log="off", mode="on")

    @cache.stage(version="1", name="tests.library")
    def build(program: cachec.Program) -> cachec.File:
        return native.to_library(native.to_llvm_ir(native.to_llvm_dialect(program)))

    return build(program)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., WeightSet]:
    """Write a checkpoint and open it. skew: bytes by which its data misses a multiple of 64."""

    def write(values: dict[str, np.ndarray], name: str = "w.safetensors", skew: int = 8) -> WeightSet:
        import json

        header, at = {}, 0
        for key, each in values.items():
            dtype = {"float32": "F32", "bfloat16": "BF16", "int8": "I8", "bool": "BOOL", "float64": "F64"}[
                str(each.dtype)
            ]
            header[key] = {"dtype": dtype, "shape": each.shape, "data_offsets": [at, at + each.nbytes]}
            at += each.nbytes
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % 64 + skew)
        data = b"".join(each.tobytes() for each in values.values())
        (tmp_path / name).write_bytes(len(text).to_bytes(8, "little") + text + data)
        return cachec.open_weights(tmp_path / name)

    return write
