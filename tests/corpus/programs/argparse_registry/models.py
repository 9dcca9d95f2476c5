from dataclasses import dataclass, field

from registry import register

HIDDEN = 64


@dataclass
class Model:
    name: str
    layers: list = field(default_factory=list)


@register("shallow")
def shallow(depth):
    return Model("shallow", [HIDDEN])


@register("deep")
def deep(depth):
    return Model("deep", [HIDDEN * (index + 1) for index in range(depth)])
