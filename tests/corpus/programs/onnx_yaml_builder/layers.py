import numpy as np
from onnx import TensorProto, helper, numpy_helper

LAYERS = {}


def layer(name):
    return lambda fn: LAYERS.setdefault(name, fn)


class Builder:
    def __init__(self, width):
        self.inputs = width
        self.width = width
        self.nodes, self.initializers = [], []
        self.last = "x"
        self.rng = np.random.default_rng(0)

    def add(self, op, *extra, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [self.last, *extra], [name], **attributes))
        self.last = name

    def weight(self, shape):
        name = f"w{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(self.rng.normal(size=shape).astype(np.float32), name))
        return name

    def serialize(self):
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "net",
            [info("x", TensorProto.FLOAT, ["n", self.inputs])],
            [info(self.last, TensorProto.FLOAT, ["n", self.width])],
            self.initializers,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return model.SerializeToString(deterministic=True)


@layer("dense")
def dense(b, units):
    b.add("MatMul", b.weight((b.width, units)))
    b.width = units


@layer("relu")
def relu(b, leak=0.0):
    b.add("LeakyRelu", alpha=leak)


@layer("normalize")
def normalize(b):
    b.add("LpNormalization", axis=-1, p=2)
