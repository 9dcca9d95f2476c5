import operator

PIPELINE = {}


def register(fn):
    PIPELINE[fn.__name__] = fn
    return fn


@register
def multiply_by_one(module):
    for node in list(module.graph.nodes):
        if node.target is operator.mul and node.args[1] == 1.0:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)


@register
def common_subexpressions(module):
    seen = {}
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        key = (node.target, node.args, tuple(node.kwargs.items()))
        if key in seen:
            node.replace_all_uses_with(seen[key])
            module.graph.erase_node(node)
        else:
            seen[key] = node
