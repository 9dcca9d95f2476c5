import copy

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import cachec

cache = cachec.Cache()
MEMBERS = 3


def member(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 4), nn.Softplus(), nn.Linear(4, 1))


@cache.stage(tools=["torch"])
def ensemble(members: int, points: int) -> tuple[torch.Tensor, torch.Tensor]:
    models = [member(seed) for seed in range(members)]
    params, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def call(p, b, x):
        return functional_call(base, (p, b), (x,))

    x = torch.stack([torch.linspace(0, 1, points), torch.linspace(1, 2, points)], 1)
    with torch.no_grad():
        y = vmap(call, in_dims=(0, 0, None))(params, buffers, x)[..., 0]
    return y.mean(0), y.std(0)


if __name__ == "__main__":
    mean, std = ensemble(MEMBERS, 3)
    print("RESULT", [round(v, 4) for v in mean.tolist()], [round(v, 4) for v in std.tolist()])
