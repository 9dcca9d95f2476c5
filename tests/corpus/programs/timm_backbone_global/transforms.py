import torch

MEAN = (0.5, 0.4, 0.3)
STD = (0.2, 0.2, 0.2)


def normalize(x):
    mean = torch.tensor(MEAN)[:, None, None]
    std = torch.tensor(STD)[:, None, None]
    return (x - mean) / std


def to_batch(seeds, size):
    return torch.stack([torch.rand(3, size, size, generator=torch.Generator().manual_seed(s)) for s in seeds])
