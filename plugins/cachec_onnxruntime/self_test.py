"""The self-test of the plugin, which ``cachec.programs.self_tests`` runs with new releases."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import cachec_onnxruntime
from cachec.cache import Cache
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.programs.self_test_checks import check_linked
from cachec_onnxruntime.protobuf import bytes_field, number_field

_FLOAT = 1


def self_test() -> None:
    """Optimise ``y = x @ w``. Raises where that does not work."""
    cache = Cache()

    @cache.stage(tools=["onnxruntime"], isolated=False, version="1")
    def build(program: Program) -> File:
        return cachec_onnxruntime.optimize(program)

    weights = {"w": np.arange(6, dtype="f4").reshape(2, 3)}
    inputs = (np.array([[1, 2], [3, 5]], "f4"),)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(matmul_model(weights["w"]))
        program = cachec_onnxruntime.strip(path)
    check_linked(build, program, weights, inputs, lambda arrays, x: x @ arrays["w"])


def matmul_model(weight: np.ndarray) -> bytes:
    """The bytes of a ModelProto of ``y = x @ w``, where ``x`` has two rows. Written without the package onnx."""
    rows, columns = weight.shape
    node = bytes_field(1, "x") + bytes_field(1, "w") + bytes_field(2, "y") + bytes_field(4, "MatMul")
    tensor = b"".join(number_field(1, each) for each in weight.shape) + number_field(2, _FLOAT)
    tensor += bytes_field(8, "w") + bytes_field(9, weight.tobytes())
    graph = bytes_field(1, node) + bytes_field(2, "graph") + bytes_field(5, tensor)
    graph += bytes_field(11, _value("x", (2, rows))) + bytes_field(12, _value("y", (2, columns)))
    return number_field(1, 8) + bytes_field(7, graph) + bytes_field(8, bytes_field(1, "") + number_field(2, 13))


def _value(name: str, shape: tuple[int, ...]) -> bytes:
    """A ValueInfoProto."""
    dimensions = b"".join(bytes_field(1, number_field(1, each)) for each in shape)
    tensor = number_field(1, _FLOAT) + bytes_field(2, dimensions)
    return bytes_field(1, name) + bytes_field(2, bytes_field(1, tensor))
