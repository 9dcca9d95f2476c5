import numpy as np

import cachec

cache = cachec.Cache()


@cache.stage
def normalize(array):
    if array.flags.writeable:
        array = array.copy()
    else:
        array = array.astype(np.float64)
    array /= array.max()
    return array.dtype.name, array.tolist()


base = np.arange(4, dtype=np.float32)
fixed = base.copy()
fixed.flags.writeable = False
print("RESULT", normalize(base))
print("RESULT", normalize(fixed))
