"""torch.onnx.export by tracing, then ONNX Runtime."""

import io
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

import cachec

cache = cachec.Cache()
OPSET = 17
warnings.filterwarnings("ignore", category=DeprecationWarning)


class Net(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 3)
        self.fc = nn.Linear(channels, 2)

    def forward(self, image):
        x = torch.relu(self.conv(image)).mean((2, 3))
        return self.fc(x)


@cache.stage(tools=["torch", "onnx"])
def export(channels: int, seed: int) -> bytes:
    torch.manual_seed(seed)
    buffer = io.BytesIO()
    torch.onnx.export(
        Net(channels).eval(),
        (torch.zeros(1, 1, 6, 6),),
        buffer,
        input_names=["image"],
        output_names=["logits"],
        opset_version=OPSET,
        dynamo=False,
    )
    return buffer.getvalue()


@cache.stage(tools=["onnxruntime", "numpy"])
def infer(model: bytes, size: int) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    image = np.arange(size * size, dtype=np.float32).reshape(1, 1, size, size) / 10
    return session.run(None, {"image": image})[0]


if __name__ == "__main__":
    model = export(3, 0)
    graph = onnx.load_from_string(model).graph
    print("RESULT", [node.op_type for node in graph.node])
    print("RESULT", np.round(infer(model, 6), 3).tolist())
