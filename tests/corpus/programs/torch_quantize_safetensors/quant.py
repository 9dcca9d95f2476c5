import torch

LEVELS = 127


def scale_of(w):
    return float(w.abs().max()) / LEVELS


def quantize(w):
    return torch.clamp(torch.round(w / scale_of(w)), -LEVELS, LEVELS).to(torch.int8)


def dequantize(q, scale):
    return q.float() * scale
