import functools
import importlib

import cachec

cache = cachec.Cache()


def resolve(name):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def read_chain():
    with open("chain.cfg") as f:
        return [(resolve(name), int(value)) for name, value in map(str.split, f)]


@cache.stage
def evaluate(start):
    return functools.reduce(lambda total, step: step[0](total, step[1]), read_chain(), start)


@cache.stage
def reduce_all(name, values):
    return functools.reduce(resolve(name), values)


print("RESULT", evaluate(5), evaluate(1))
print("RESULT", reduce_all("operator.mul", [2, 3, 4]), reduce_all("math.gcd", [12, 18]))
