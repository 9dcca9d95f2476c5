import model

original = model.cost


def cheaper(op):
    return original(op) // 2


model.cost = cheaper
model.HOOKS.append(lambda value: value + 1)
