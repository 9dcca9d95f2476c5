import math

import ir.ops


class Tensor:
    def __init__(self, shape):
        self.shape = shape

    def __add__(self, other):
        return ir.ops.Op("add", [self, other])

    def size(self):
        count = math.prod(self.shape)
        return 4 * count
