import json

import numpy as np


class Shape:
    def __init__(self, *dims):
        self.dims = dims

    def __repr__(self):
        return "x".join(map(str, self.dims))


class Encoder(json.JSONEncoder):
    def default(self, value):
        if isinstance(value, np.ndarray):
            return {"__array__": value.tolist(), "dtype": value.dtype.name}
        if isinstance(value, Shape):
            return {"__shape__": list(value.dims)}
        return super().default(value)


def hook(data):
    if "__array__" in data:
        return np.array(data["__array__"], data["dtype"])
    if "__shape__" in data:
        return Shape(*data["__shape__"])
    return data
