import numpy as np

import cachec

cache = cachec.Cache()


def layout(array):
    return "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else "strided"


@cache.stage
def describe(array: np.ndarray):
    return array.shape, array.dtype.str, layout(array), float(array.sum())


@cache.stage
def total(array, scale: np.float32):
    return array.sum() * scale


@cache.stage
def by_name(records: np.ndarray):
    return {record["name"].item(): float(record["count"] * record["cost"]) for record in records}


base = np.arange(24, dtype=np.float32).reshape(4, 6)
fixed = base.copy()
fixed.flags.writeable = False
table = np.array([("a", 1, 2.0), ("b", 2, 0.5)], dtype=[("name", "U4"), ("count", "i4"), ("cost", "f8")])

print("RESULT", describe(base))
print("RESULT", describe(base[:, ::2]))
print("RESULT", describe(np.asfortranarray(base)))
print("RESULT", describe(fixed))
print("RESULT", float(total(base[::-1], np.float32(0.5))))
print("RESULT", by_name(table))
print("RESULT", describe(np.array(3.5)))
