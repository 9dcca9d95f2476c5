from functools import partial

import cachec

cache = cachec.Cache()


def make_scaler(factor):
    def scale(x):
        return x * factor

    return scale


def clip(x, low=0, high=100):
    return max(low, min(x, high))


@cache.stage
def apply(function, values):
    return [function(value) for value in values]


@cache.stage
def compose(functions, value):
    for function in functions:
        value = function(value)
    return value


if __name__ == "__main__":
    values = [1, 5, 30]
    print("RESULT", apply(lambda x: x + 1, values))
    print("RESULT", apply(make_scaler(3), values))
    print("RESULT", apply(partial(clip, high=10), values))
    print("RESULT", compose([make_scaler(2), lambda x: x - 1, abs], -7))
