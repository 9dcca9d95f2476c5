import numpy as np

from .calibrate import calibrate
from .convert import quantize
from .pack import pack

samples = np.random.default_rng(3).normal(size=(4, 4))
scale = calibrate(samples)
codes = quantize(samples, scale)
print("RESULT", round(scale, 8))
print("RESULT", codes.tolist())
print("RESULT", pack(codes).hex())
