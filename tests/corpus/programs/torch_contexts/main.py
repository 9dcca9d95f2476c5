"""no_grad, autocast and deterministic algorithms around the calls of stages."""

import contextlib

import torch
from torch import nn

import cachec

cache = cachec.Cache()
torch.use_deterministic_algorithms(True)


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@cache.stage(tools=["torch"])
def describe(batch: int) -> dict[str, object]:
    y = net()(torch.full((batch, 4), 0.5))
    return {"dtype": str(y.dtype), "grad": y.requires_grad, "sum": round(float(y.detach().float().sum()), 2)}


def main():
    print("RESULT", describe(2))
    with torch.no_grad():
        print("RESULT", describe(2))
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        print("RESULT", describe(2))


if __name__ == "__main__":
    main()
