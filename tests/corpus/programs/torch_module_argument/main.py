import torch
from torch import nn

import cachec
from nets import ConvNet, mlp

cache = cachec.Cache()


@cache.stage(tools=["torch"])
def flops(model: nn.Module, shape: tuple[int, ...]) -> int:
    total = 0

    def count(module, inputs, output):
        nonlocal total
        total += output.numel() * module.weight[0].numel()

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    with torch.no_grad():
        model(torch.zeros(shape))
    for hook in hooks:
        hook.remove()
    return total


@cache.stage(tools=["torch"])
def trace_size(model: nn.Module) -> list[str]:
    graph = torch.fx.symbolic_trace(model).graph
    return [node.name for node in graph.nodes]


def main():
    torch.manual_seed(0)
    print("RESULT", flops(mlp(4, 8, 2), (3, 4)))
    net = ConvNet(2)
    print("RESULT", flops(net, (1, 1, 6, 6)))
    print("RESULT", trace_size(net))


if __name__ == "__main__":
    main()
