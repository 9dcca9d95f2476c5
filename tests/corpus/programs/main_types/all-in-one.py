import enum
from dataclasses import dataclass
from typing import NamedTuple

import cachec

cache = cachec.Cache()


class Kind(enum.Enum):
    CONV = "conv2d"
    DENSE = "dense"


@dataclass(frozen=True)
class Layer:
    kind: Kind
    units: int = 8


class Cost(NamedTuple):
    name: str
    flops: int


class TooLarge(Exception):
    def __init__(self, units):
        super().__init__(f"{units} units")


@cache.stage
def cost(layer: Layer) -> Cost:
    if layer.units > 100:
        raise TooLarge(layer.units)
    return Cost(layer.kind.value, layer.units**2)


@cache.stage
def widen(layers: list[Layer], by: int) -> list[Layer]:
    return [Layer(layer.kind, layer.units * by) for layer in layers]


layers = [Layer(Kind.CONV), Layer(Kind.DENSE, 30)]
for layer in layers:
    print("RESULT", cost(layer))
print("RESULT", widen(layers, 2))
try:
    cost(Layer(Kind.DENSE, 101))
except TooLarge as error:
    print("RESULT", error)
