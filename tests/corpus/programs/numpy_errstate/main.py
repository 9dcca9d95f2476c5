import numpy as np

import cachec

cache = cachec.Cache()


def safe(values):
    with np.errstate(all="ignore"):
        return np.nan_to_num(values / values, nan=-1.0)


@cache.stage
def invert(values: np.ndarray):
    try:
        return (1.0 / values).tolist()
    except FloatingPointError as error:
        return f"error: {error}"


@cache.stage
def normalize(values: np.ndarray):
    return safe(values).tolist()


if __name__ == "__main__":
    np.seterr(divide="raise")
    print("RESULT", invert(np.array([1.0, 0.0, 4.0])))
    print("RESULT", normalize(np.array([1.0, 0.0, 4.0])))
