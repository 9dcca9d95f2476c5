HOOKS = []


def cost(op):
    return {"conv": 12, "relu": 4}[op]


def total(ops):
    value = sum(cost(op) for op in ops)
    for hook in HOOKS:
        value = hook(value)
    return value
