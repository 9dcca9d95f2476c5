"""Export, rewrite the graph by passes, count what is left."""

import torch
from torch import fx, nn

import cachec
from passes import PIPELINE

cache = cachec.Cache()


class Gate(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up = nn.Linear(dim, 2 * dim)

    def forward(self, x):
        a, b = self.up(x).chunk(2, dim=-1)
        return torch.relu(a) * torch.sigmoid(b) + torch.relu(a) * 1.0


@cache.stage(tools=["torch"])
def capture(dim: int) -> str:
    return fx.symbolic_trace(Gate(dim)).code.strip()


@cache.stage(tools=["torch"])
def optimise(dim: int, passes: tuple[str, ...]) -> list[str]:
    module = fx.symbolic_trace(Gate(dim))
    for name in passes:
        PIPELINE[name](module)
        module.graph.lint()
        module.recompile()
    return [node.name for node in module.graph.nodes]


def main():
    print("RESULT", len(capture(4).splitlines()))
    print("RESULT", optimise(4, ("multiply_by_one",)))
    print("RESULT", optimise(4, tuple(PIPELINE)))


if __name__ == "__main__":
    main()
