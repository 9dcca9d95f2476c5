"""cachec_onnxruntime: models drawn at random give, with any weights, what ONNX Runtime gives without optimising."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cachec
import cachec_onnxruntime as co
from tests.effort import rounds
from tests.needs import Later, need_packages
from tests.plugins.onnx_models import X, model, node

ort = Later("onnxruntime")

Array = Any


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    need_packages("onnxruntime", "onnx")


class Drawn:
    """A chain of operations on ``(2, 8)``. shapes: of weights, which differ with each set. fixed: of the structure."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.nodes = draw, []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.fixed: dict[str, Array] = {}
        self._count = 0
        at = "x"
        for _ in range(draw.randrange(2, 9)):
            at = draw.choice(STEPS)(self, at)
        self.op("Identity", at, output="y")

    def op(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        self._count += 1
        self.nodes.append(node(kind, " ".join(inputs), output or f"v{self._count}", **attributes))
        return output or f"v{self._count}"

    def weight(self, *shapes: tuple[int, ...]) -> str:
        """Of one of these shapes; now and then one that is there."""
        shape = self.draw.choice(shapes)
        alike = [name for name, each in self.shapes.items() if each == shape]
        if alike and self.draw.random() < 0.2:
            return self.draw.choice(alike)
        self.shapes[f"w{len(self.shapes)}"] = shape
        return f"w{len(self.shapes) - 1}"

    def constant(self, value: Any, dtype: str = "i8") -> str:
        self.fixed[f"c{len(self.fixed)}"] = np.array(value, dtype)
        return f"c{len(self.fixed) - 1}"

    def made(self, seed: int, special: float | None) -> tuple[Any, dict[str, Array]]:
        values = np.random.default_rng(seed)
        weights = {
            name: np.asarray(values.normal(0.2, 0.7, shape) if special is None else np.full(shape, special), "f4")
            for name, shape in self.shapes.items()
        }
        return model(self.nodes, {**weights, **self.fixed}), weights


SMALL = ((), (1,), (8,), (2, 8), (1, 1))

STEPS: list[Callable[[Drawn, str], str]] = [
    lambda d, x: d.op("MatMul", x, d.weight((8, 8))),
    lambda d, x: d.op("Gemm", x, d.weight((8, 8)), d.weight((8,)), transB=1),
    lambda d, x: d.op(d.draw.choice(["Add", "Mul", "Sub", "Max"]), x, d.weight(*SMALL)),
    lambda d, x: d.op("MatMul", x, d.op("Transpose", d.weight((8, 8)), perm=[1, 0])),
    lambda d, x: d.op("Mul", x, d.op("Exp", d.weight(*SMALL))),
    lambda d, x: d.op("Sub", x, d.op("Add", d.weight((8,)), d.weight((8,)))),
    lambda d, x: d.op("Mul", x, d.op("Add", d.op("Erf", d.op("Mul", x, d.weight((), (1,)))), d.weight((), (1,)))),
    lambda d, x: d.op("LayerNormalization", x, d.weight((8,)), d.weight((8,)), axis=-1),
    lambda d, x: d.op("Clip", x, d.weight(()), "-"),
    lambda d, x: d.op("PRelu", x, d.weight((8,))),
    lambda d, x: d.op("Reshape", d.op("Transpose", x, perm=[1, 0]), d.constant([2, 8])),
    lambda d, x: d.op("Expand", d.op("ReduceSum", x, d.constant([0]), keepdims=1), d.constant([2, 8])),
    lambda d, x: d.op(
        "Slice", d.op("Pad", x, d.constant([0, 0, 0, 1]), d.weight(())), *map(d.constant, ([1], [9], [1]))
    ),
    lambda d, x: d.op("Softmax", d.op("Add", x, d.weight((2, 8))), axis=-1),
    lambda d, x: d.op("Add", x, d.op("Gather", d.weight((7, 8)), d.constant([d.draw.randrange(7), 3]))),
]


@pytest.mark.fuzz
def test_random_models_with_any_weights() -> None:
    from cachec_onnxruntime.optimizer import LEVELS  # of the release that is installed

    levels = sorted(LEVELS)
    for seed in range(rounds(400)):
        draw = random.Random(seed)
        drawn = Drawn(draw)
        how = {"constants": draw.choice([None, ()]), "level": draw.choice(levels)}
        first, _ = drawn.made(0, draw.choice([None, 0.0, 1.0]))
        program = co.strip(first, constants=how["constants"])
        file = co.optimize(program, level=how["level"])
        for number in (1, 2):
            whole, weights = drawn.made(number, draw.choice([None, None, 0.0]))
            if co.strip(whole, constants=how["constants"]) != program:  # another value stays in it
                continue
            outside = {name: {**weights, **drawn.fixed}[name] for name in program.manifest.weights}
            found = cachec.link(file, cachec.WeightSet.from_arrays(outside)).run(None, {"x": X})[0]
            options = ort.SessionOptions()
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            plain = ort.InferenceSession(whole.SerializeToString(), options, providers=["CPUExecutionProvider"])
            expected = plain.run(None, {"x": X})[0]
            np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4, err_msg=f"seed {seed}, {how}")
