"""Passes over graphs; each is a function that registers itself with an order."""

PASSES = []


def graph_pass(order):
    def wrap(fn):
        PASSES.append((order, fn))
        PASSES.sort(key=lambda item: item[0])
        return fn

    return wrap


@graph_pass(order=2)
def drop_identity(graph):
    for node in [n for n in graph.node if n.op_type == "Identity"]:
        for other in graph.node:
            other.input[:] = [node.input[0] if i == node.output[0] else i for i in other.input]
        graph.node.remove(node)


@graph_pass(order=1)
def fuse_relu_relu(graph):
    made = {n.output[0]: n for n in graph.node}
    for node in graph.node:
        source = made.get(node.input[0])
        if node.op_type == "Relu" and source is not None and source.op_type == "Relu":
            node.op_type = "Identity"
