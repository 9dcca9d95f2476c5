"""The native pipeline under the suite that every plugin inherits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import cachec
from cachec.model import WeightSpec
from cachec.testing.conformance import PluginConformance
from cachec_native import plugin
from tests.plugins.native.conftest import X, arrays, example, stages

#: Weights of few elements. The last of each is added to every element of the result.
SMALL = {"zero": (), "one": (1,), "eight": (8,), "nine": (9,)}


def text(mlp: Callable[..., str], weights: Mapping[str, WeightSpec], batch: int, *, threshold: float) -> str:
    """The example's module, which ``mlp`` writes, with these beside its weights."""
    total, lines = "%zero", []
    for name, shape in SMALL.items():
        kind = "memref<" + "".join(f"{size}x" for size in shape) + "f32>"
        lines += [f"%at_{name} = arith.constant {size - 1} : index" for size in shape]
        lines += [f"%all_{name} = memref.get_global @{name} : {kind}"]
        lines += [f"%of_{name} = memref.load %all_{name}[{f'%at_{name}' if shape else ''}] : {kind}"]
        lines += [f"%with_{name} = arith.addf {total}, %of_{name} : f32"]
        total = f"%with_{name}"
    fill = "linalg.fill ins(%zero : f32)"
    return mlp(weights, batch, threshold=threshold).replace(fill, "\n  ".join([*lines, fill.replace("%zero", total)]))


class TestNative(PluginConformance):
    plugin = plugin
    compilers = ("cachec_native.linker", "iree.compiler", "jaxlib")
    runtimes = ("cachec_native.linker",)

    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        return stages(cache, partial(text, example().mlp))

    def weight_sets(self, folder: Path) -> tuple[cachec.WeightSet, cachec.WeightSet]:
        sets = []
        for seed in (0, 1):
            draw = np.random.default_rng(seed + 2)
            small = {name: np.asarray(draw.normal(size=shape), "f4") for name, shape in SMALL.items()}
            save_file(arrays(seed) | small, folder / f"{seed}.safetensors")
            sets.append(cachec.open_weights(folder / f"{seed}.safetensors"))
        return sets[0], sets[1]

    @pytest.mark.long
    def test_a_warm_result_is_the_cold_one(self, cache: cachec.Cache, sets: Any) -> None:
        super().test_a_warm_result_is_the_cold_one(cache, sets)

    @pytest.mark.long
    def test_a_build_reads_no_value(self, cache: cachec.Cache, sets: Any) -> None:
        super().test_a_build_reads_no_value(cache, sets)

    @pytest.mark.long
    def test_a_hit_in_a_new_process_imports_no_compiler(self, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        super().test_a_hit_in_a_new_process_imports_no_compiler(tmp_path, request)

    @pytest.mark.long
    def test_a_value_that_no_name_stands_for_is_in_the_key(self, cache: cachec.Cache, sets: Any) -> None:
        super().test_a_value_that_no_name_stands_for_is_in_the_key(cache, sets)

    @pytest.mark.long
    def test_compare_tells_artifacts_apart(self, cache: cachec.Cache, sets: Any) -> None:
        super().test_compare_tells_artifacts_apart(cache, sets)

    def inputs(self) -> Sequence[np.ndarray]:
        return (X,)

    def link(self, artifact: Any, weights: cachec.WeightSet) -> Callable[..., Any]:
        kind = [("float32", X.shape)]
        return cachec.link(artifact, weights).function("mlp", inputs=kind, outputs=kind)
