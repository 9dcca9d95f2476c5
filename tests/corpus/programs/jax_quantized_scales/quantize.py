import numpy as np

BITS = 8


def quantize(w):
    limit = 2 ** (BITS - 1) - 1
    scale = np.abs(w).max() / limit
    return np.round(w / scale).astype(np.int8), scale
