"""Tiny ONNX models, written by hand. onnx is imported when the first is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.needs import Later

onnx = Later("onnx")
helper = Later("onnx.helper")
numpy_helper = Later("onnx.numpy_helper")

FLOAT = 1
X = np.linspace(-1, 1, 16, dtype="f4").reshape(2, 8)


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    """inputs: their names, separated by blanks; - for one that is left out."""
    return helper.make_node(kind, [name.strip("-") for name in inputs.split()], [output], name=output, **attributes)


def model(
    nodes: Sequence[Any],
    constants: Mapping[str, Any],
    *,
    x: tuple[int, tuple[int, ...]] = (FLOAT, (2, 8)),
    inputs: Sequence[Any] = (),
    outputs: Sequence[str] = ("y",),
    ir: int = 10,
    opset: int = 20,
) -> Any:
    """From ``x`` to ``y``. constants: initialisers, as arrays or TensorProtos. inputs: further ones."""
    made = [
        value if hasattr(value, "data_type") else numpy_helper.from_array(np.asarray(value), name)
        for name, value in constants.items()
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", *x), *inputs],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        made,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


#: The sizes from which some compilers take a weight by name, and to which others take it by value.
SIZES = {"zero": (), "one": (1,), "eight": (8,), "nine": (9,)}


def arrays(seed: int) -> dict[str, np.ndarray]:
    """Weights of ``perceptron``. The first are such as compilers fold: ones."""
    if seed == 0:
        shapes = {"up": (8, 9), "down": (9, 8), **SIZES}
        return {name: np.ones(shape, "f4") for name, shape in shapes.items()}
    draw = np.random.default_rng(seed)
    return {name: draw.normal(1, 0.5, each.shape).astype("f4") for name, each in arrays(0).items()}


def perceptron(weights: Mapping[str, np.ndarray], factor: float = 2.0) -> Any:
    """``((x @ up * nine) @ transposed(transposed(down)) * eight + one) * zero * factor``, reshaped to (4, 4)."""
    nodes = [
        node("MatMul", "x up", "a"),
        node("Mul", "a nine", "b"),
        node("Transpose", "down", "t", perm=[1, 0]),
        node("Transpose", "t", "d", perm=[1, 0]),
        node("MatMul", "b d", "c"),
        node("Mul", "c eight", "e"),
        node("Add", "e one", "f"),
        node("Mul", "f zero", "g"),
        node("Mul", "g factor", "h"),
        node("Reshape", "h shape", "y"),
    ]
    return model(nodes, {**weights, "factor": np.float32(factor), "shape": np.array([4, 4])})


def expected(weights: Mapping[str, np.ndarray], factor: float = 2.0) -> np.ndarray:
    """What ``perceptron`` gives for ``X``."""
    w = {name: np.asarray(value, "f8") for name, value in weights.items()}
    inner = (X.astype("f8") @ w["up"] * w["nine"]) @ w["down"] * w["eight"] + w["one"]
    result: np.ndarray = (inner * w["zero"] * factor).reshape(4, 4)
    return result


def saved(path: Path, made: Any, *, external: bool = False) -> Path:
    """The model in a file; external: its matrices in another beside it (shapes have to stay)."""
    data = path.with_suffix(".data")
    data.unlink(missing_ok=True)  # onnx appends
    more = {"save_as_external_data": True, "location": data.name, "size_threshold": 66} if external else {}
    onnx.save(made, path, **more)
    return path
