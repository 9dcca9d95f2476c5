from onnx import TensorProto, helper

CHAIN = ("Relu", "Relu", "Identity", "Neg", "Relu")


def example(size):
    nodes = [helper.make_node(op, [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i, op in enumerate(CHAIN)]
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [size])
    graph = helper.make_graph(nodes, "example", [info("t0")], [info(f"t{len(CHAIN)}")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
