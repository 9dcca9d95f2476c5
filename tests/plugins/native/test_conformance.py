"""The native pipeline under the suite that every plugin inherits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import cachec
from cachec.testing.conformance import PluginConformance
from cachec_native import plugin
from tests.plugins.native.conftest import X, arrays, stages


class TestNative(PluginConformance):
    plugin = plugin
    compilers = ("ctypes", "cachec_native.linking", "iree.compiler", "jaxlib")

    @pytest.fixture(autouse=True)
    def _example(self, mlp: ModuleType) -> None:
        self.text = mlp.mlp

    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        return stages(cache, self.text)

    def weight_sets(self, folder: Path) -> tuple[cachec.WeightSet, cachec.WeightSet]:
        sets = []
        for seed in (0, 1):
            save_file(arrays(seed), folder / f"{seed}.safetensors")
            sets.append(cachec.open_weights(folder / f"{seed}.safetensors"))
        return sets[0], sets[1]

    @pytest.mark.long
    def test_a_warm_result_is_the_cold_one(self, cache: cachec.Cache, sets: Any) -> None:
        super().test_a_warm_result_is_the_cold_one(cache, sets)

    def inputs(self) -> Sequence[np.ndarray]:
        return (X,)

    def link(self, artifact: Any, weights: cachec.WeightSet) -> Callable[..., Any]:
        kind = [("float32", X.shape)]
        return cachec.link(artifact, weights).function("mlp", inputs=kind, outputs=kind)
