"""The seed is set in main; the stage draws from the global generator."""

import random

import numpy as np
import torch
from torch import nn

import cachec

cache = cachec.Cache()


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@cache.stage(tools=["torch"])
def initial_norms(width: int) -> list[float]:
    layers = [nn.Linear(width, width) for _ in range(2)]
    return [round(float(layer.weight.detach().norm()), 4) for layer in layers]


@cache.stage
def split(n: int) -> list[int]:
    order = list(range(n))
    random.shuffle(order)
    return order


def main(seed=1):
    seed_everything(seed)
    print("RESULT", initial_norms(4))
    print("RESULT", split(5))
    print("RESULT", np.random.permutation(4).tolist(), round(float(torch.rand(())), 4))


if __name__ == "__main__":
    main()
