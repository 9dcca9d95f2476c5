import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 18
ACTIVATION = "Relu"


def make_model(arrays):
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node(ACTIVATION, ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "w2"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", arrays["w1"].shape[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", arrays["w2"].shape[1]])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    return model
