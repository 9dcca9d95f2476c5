import numpy as np

from .cache import cache

PERCENTILE = 99


@cache.stage
def calibrate(samples):
    return float(np.percentile(np.abs(samples), PERCENTILE)) / 7
