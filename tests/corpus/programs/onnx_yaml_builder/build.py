"""python build.py net.yaml: the layers of a YAML file as an ONNX model, checked against NumPy."""

import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml

import cachec
from layers import LAYERS, Builder

cache = cachec.Cache()


@cache.stage(tools=["onnx", "pyyaml"])
def compile_net(path: Path) -> cachec.File:
    net = yaml.safe_load(path.read_text())
    builder = Builder(net["input"])
    for layer in net["layers"]:
        kind, options = next(iter(layer.items())) if isinstance(layer, dict) else (layer, {})
        LAYERS[kind](builder, **options)
    target = Path(tempfile.mkdtemp()) / "net.onnx"
    target.write_bytes(builder.serialize())
    return cachec.File(target)


@cache.stage(tools=["onnxruntime"])
def evaluate(model: cachec.File, rows: int) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.read_bytes(), providers=["CPUExecutionProvider"])
    width = session.get_inputs()[0].shape[1]
    x = np.cos(np.arange(rows * width, dtype=np.float32)).reshape(rows, width)
    return session.run(None, {"x": x})[0]


if __name__ == "__main__":
    model = compile_net(Path(sys.argv[1]))
    print("RESULT", np.round(evaluate(model, 2), 4).tolist())
