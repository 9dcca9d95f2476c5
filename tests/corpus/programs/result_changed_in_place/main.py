import numpy as np

import cachec

cache = cachec.Cache()


@cache.stage
def initial(shape, scale=0.5):
    rng = np.random.default_rng(0)
    return rng.normal(size=shape) * scale


def main():
    w = initial((3, 2))
    for step in range(4):
        w -= 0.1 * w  # in place, as an optimizer does
    print("RESULT", w.round(6).tolist())
    print("RESULT", initial((3, 2)).round(6).tolist())


if __name__ == "__main__":
    main()
