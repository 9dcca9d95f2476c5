import numpy as np
from absl import app, flags

import cachec
from tools.schemes import Scheme, levels

_BITS = flags.DEFINE_integer("bits", 8, "bits of a weight")
_SCHEME = flags.DEFINE_enum_class("scheme", Scheme.SYMMETRIC, Scheme, "how to round")

cache = cachec.Cache()


@cache.stage
def quantize(values: np.ndarray, bits: int, scheme: Scheme):
    if scheme is Scheme.AFFINE:
        low, high = values.min(), values.max()
        scale = (high - low) / levels(bits)
        return np.round((values - low) / scale).astype(np.int32), float(scale)
    scale = np.abs(values).max() / (levels(bits) // 2)
    return np.round(values / scale).astype(np.int32), float(scale)


def main(_):
    # sample data
    values = np.linspace(-1, 1, 9, dtype=np.float64)
    codes, scale = quantize(values, _BITS.value, _SCHEME.value)
    print("RESULT", codes.tolist(), round(scale, 6))


if __name__ == "__main__":
    app.run(main)
