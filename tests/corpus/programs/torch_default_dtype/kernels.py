import torch

JITTER = 1e-3


def distance(a, b):
    return (a - b).abs()


def rbf(a, b, scale=0.5):
    return torch.exp(-((distance(a, b) / scale) ** 2))


def matern(a, b, scale=0.5):
    d = distance(a, b) / scale
    return (1 + d) * torch.exp(-d)
